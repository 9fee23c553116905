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


def _run(*scripts: str, folder: Path, platform: str) -> subprocess.CompletedProcess[str]:
    """Call `main` of each script, in one process."""
    folders = [HERE, HERE / "windows_like", TESTS, TESTS.parent / "src", os.environ.get("PYTHONPATH", "")]
    calls = "\n".join(f"import {script}; {script}.main()" for script in scripts)
    return subprocess.run(
        [sys.executable, "-c", calls, str(folder)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders)), "SIMULATED_PLATFORM": platform},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_package_works_on_windows(tmp_path: Path) -> None:
    """One process imports every name, runs servers and agents, and bounds its helpers."""
    done = _run("names_and_commands", "servers_and_processes", "bounded_helpers", folder=tmp_path, platform="win32")
    assert done.returncode == 0, done.stderr


def test_helpers_are_bounded_on_macos(tmp_path: Path) -> None:
    done = _run("bounded_helpers", folder=tmp_path, platform="darwin")
    assert done.returncode == 0, done.stderr
