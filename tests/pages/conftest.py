"""A reader's working directory, in which "embedded" is a model that is small enough for a test."""

from __future__ import annotations

import json
import shutil

import pytest

from caches import empty_cache
from mini_agentic_rl.policy import embedded_path


@pytest.fixture(scope="session")
def small_cache(tiny_folder, tmp_path_factory):
    """Return a cache folder that holds a tiny model, with room for long prompts, in place of the embedded one."""
    cache = empty_cache(tmp_path_factory.mktemp("cache"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINI_AGENTIC_RL_CACHE", str(cache))
        folder = embedded_path()
    shutil.copytree(tiny_folder, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 4096}))
    return cache


@pytest.fixture
def here(small_cache, tmp_path, monkeypatch):
    """Return an empty working directory; the process is in it."""
    monkeypatch.setenv("MINI_AGENTIC_RL_CACHE", str(small_cache))
    monkeypatch.chdir(tmp_path)
    return tmp_path
