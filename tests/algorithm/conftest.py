"""What several tests of algorithms share."""

from __future__ import annotations

import pytest
from letters import Kept


@pytest.fixture
def kept() -> Kept:
    return Kept()
