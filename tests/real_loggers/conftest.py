"""Trackio's folder, which it reads when it is imported: by the first test of a session that makes its logger."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest

_FOLDER = Path(tempfile.mkdtemp(prefix="trackio-"))
os.environ["TRACKIO_DIR"] = str(_FOLDER)


@pytest.fixture(scope="session", autouse=True)
def trackio_folder():
    """Clear the folder away at the end."""
    yield _FOLDER
    shutil.rmtree(_FOLDER, ignore_errors=True)
