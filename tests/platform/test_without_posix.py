"""The package on an operating system without POSIX, simulated on Linux (see `windows_like/sitecustomize.py`)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
TESTS = HERE.parent
pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="the simulation reads /proc: the start without POSIX modules is left unchecked"
)


@pytest.mark.parametrize(
    ("script", "platform"),
    [
        ("names_and_commands", "win32"),
        ("servers_and_processes", "win32"),
        ("bounded_helpers", "win32"),
        ("bounded_helpers", "darwin"),
    ],
)
def test_the_package_works_without_posix(script: str, platform: str, tmp_path: Path) -> None:
    folders = [HERE / "windows_like", TESTS, TESTS.parent / "src", os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, str(HERE / f"{script}.py"), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders)), "SIMULATED_PLATFORM": platform},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
