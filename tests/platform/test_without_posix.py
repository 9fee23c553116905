"""The package on an operating system without POSIX, simulated on Linux (see `windows_like/sitecustomize.py`)."""

from __future__ import annotations

import json
import os
import signal
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
    path = [str(HERE / "windows_like"), str(TESTS), str(TESTS.parent / "src"), os.environ.get("PYTHONPATH", "")]
    return subprocess.run(
        [sys.executable, str(script), *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path), "SIMULATED_PLATFORM": platform},
        capture_output=True,
        text=True,
        check=False,
    )


def test_every_public_name_is_imported_and_every_command_shows_its_help() -> None:
    done = _run(HERE / "names_and_commands.py")
    assert done.returncode == 0, done.stderr


def test_servers_processes_checkpoints_and_bounds_work(tmp_path: Path) -> None:
    done = _run(HERE / "servers_and_processes.py", str(tmp_path))
    assert done.returncode == 0, done.stderr


def test_helpers_are_bounded_on_macos(tmp_path: Path) -> None:
    done = _run(HERE / "bounded_helpers.py", str(tmp_path), platform="darwin")
    assert done.returncode == 0, done.stderr


def test_a_killed_training_continues_from_its_checkpoint(tmp_path: Path) -> None:
    letters = TESTS / "algorithm" / "letters.py"
    assert _run(letters, str(tmp_path / "run"), "--die-after", "3").returncode == -signal.SIGKILL
    done = _run(letters, str(tmp_path / "run"), "--resume")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["steps"] == 4
    left = [path.name for path in (tmp_path / "run" / "checkpoints").iterdir() if path.name.startswith(".")]
    assert left == []
