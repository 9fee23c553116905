"""Fixtures that several rooms share."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def _one_torch_thread():
    """Tiny models are faster on one thread, and every number is then the same on any machine."""
    torch.set_num_threads(1)
