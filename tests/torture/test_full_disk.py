"""The disk fills up at any moment of a training: it soon ends in a line that names the folder, and can be resumed."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mini_agentic_rl.files import read_json
from processes import PythonProcess, run_python

from .conftest import SIZE, Attack

STEPS = 40 if SIZE >= 1 else 12
SOON_S = 150
"""It took five minutes: agents' time limits passed one after another. A training of this size takes seconds."""


@contextmanager
def _disk(folder: Path, kib: int) -> Iterator[None]:
    """Mount a file system of so many KiB."""
    folder.mkdir()
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={kib}k", "tmpfs", str(folder)], check=True, capture_output=True
    )
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def _can_mount(folder: Path) -> bool:
    try:
        with _disk(folder, 64):
            return True
    except (OSError, subprocess.CalledProcessError):
        return False


@pytest.mark.timeout(1200)
def test_the_disk_of_a_training_fills_up(attack: Attack, tiny_folder: str, tmp_path: Path) -> None:
    if not _can_mount(tmp_path / "probe"):
        attack.row.tried = 1
        pytest.skip("a disk of its own needs the right to mount one")
    rng = random.Random(0)
    for number in range(attack.times(20 if SIZE >= 1 else 10)):  # half a minute each
        kib = rng.randrange(60, 900 if SIZE >= 1 else 300)
        with attack.attempt(f"{kib} KiB"):
            _fill(tiny_folder, tmp_path / str(number), kib)


def _fill(model: str, disk: Path, kib: int) -> None:
    folder = disk / "run"
    options = [
        *("--model", model, "--output-dir", str(folder), "--eval-size", "2", "--sft-examples", "0"),
        *("--total-steps", str(STEPS), "--tasks-per-step", "2", "--samples-per-prompt", "2", "--n-runners", "4"),
        *("--max-new-tokens", "8", "--checkpoint-every", "2", "--max-samples", "40"),
    ]
    with _disk(disk, kib):
        with PythonProcess("mini_agentic_rl", "train", *options) as process:
            assert process.wait(SOON_S) == 2, process.stderr[-2000:]
            last = process.stderr.splitlines()[-1]
            assert last.startswith("error: "), process.stderr[-2000:]
            assert str(folder) in last, last
            assert "Traceback" not in process.stderr, process.stderr[-4000:]
        for checkpoint in (folder / "checkpoints").glob("step_*"):
            assert read_json(checkpoint / "state.json")["step"] == int(checkpoint.name.removeprefix("step_"))
        subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True)
        run_python("mini_agentic_rl", "train", *options, "--resume")
        assert read_json(folder / "summary.json")["steps"] == STEPS
