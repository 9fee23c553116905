"""Environments of other packages in `worlds/`, and a tiny model with room for their prompts."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

WORLDS = Path(__file__).parent / "worlds"


@pytest.fixture(scope="session", autouse=True)
def worlds():
    """Put the modules of `worlds/` on the path, as an installer would; servers of tools are processes of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(WORLDS))
        patch.setenv("PYTHONPATH", str(WORLDS), prepend=os.pathsep)
        yield WORLDS


@pytest.fixture(scope="session")
def model(tiny_folder, tmp_path_factory) -> str:
    """The folder of a tiny model whose tokenizer makes a token of every byte."""
    folder = shutil.copytree(tiny_folder, tmp_path_factory.mktemp("models") / "tiny")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 4096}))
    return str(folder)
