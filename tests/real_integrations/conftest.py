"""Environments of other packages in `worlds/`, and a tiny model with room for their prompts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from recipes.playing import roomy_model

model = roomy_model
WORLDS = Path(__file__).parent / "worlds"


@pytest.fixture(scope="session", autouse=True)
def worlds():
    """Put the modules of `worlds/` on the path, as an installer would; servers of tools are processes of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(WORLDS))
        patch.setenv("PYTHONPATH", str(WORLDS), prepend=os.pathsep)
        yield WORLDS
