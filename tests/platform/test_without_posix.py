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


def _run(script: Path, *arguments: str, platform: str = "win32") -> subprocess.CompletedProcess[str]:
    path = [str(folder) for folder in (HERE / "windows_like", TESTS, TESTS / "algorithm", TESTS.parent / "src")]
    path.append(os.environ.get("PYTHONPATH", ""))
    return subprocess.run(
        [sys.executable, str(script), *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path), "SIMULATED_PLATFORM": platform},
        capture_output=True,
        text=True,
        check=False,
    )


def test_names_commands_servers_processes_checkpoints_and_bounds_work_as_on_windows(tmp_path: Path) -> None:
    done = _run(HERE / "everything.py", str(tmp_path))
    assert done.returncode == 0, done.stderr


def test_helpers_are_bounded_on_macos(tmp_path: Path) -> None:
    done = _run(HERE / "bounded_helpers.py", str(tmp_path), platform="darwin")
    assert done.returncode == 0, done.stderr
