"""Cache folders for tests that leave the user's alone."""

from __future__ import annotations

from pathlib import Path

from mini_agentic_rl.config import cache_dir
from mini_agentic_rl.policy.kernels import compiled


def empty_cache(folder: Path) -> Path:
    """Return a folder that nothing was downloaded to and no data made in. What is compiled for this processor stays
    where it is and is found from there: it takes seven seconds of it."""
    libraries = [compiled.library(dtype) for dtype in compiled.VARIANTS]
    if any(libraries):
        folder.mkdir(exist_ok=True)
        (folder / "kernels").symlink_to(cache_dir() / "kernels")
    return folder
