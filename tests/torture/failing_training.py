"""Train on a disk that fails, again and again in this process; print a line of JSON for each try.

    python failing_training.py FOLDER COMMAND MODEL TRIES PART/PARTS

A command that trains for a few steps, with checkpoints between them, is run once unharmed, which counts the operations
on its folder. Then each try trains anew, on a disk that fails at one operation, and goes on when it is mended. Tries
are spread over the run. A line is [what was tried, why it did not hold or null, seconds]. A try that hangs ends the
program, with what each of its threads was at.
"""

from __future__ import annotations

import contextlib
import errno
import faulthandler
import os
import random
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from safetensors.torch import load_file

from mini_agentic_rl import cli
from mini_agentic_rl.files import read_json
from mini_agentic_rl.metrics import read_metrics
from torture.failing_disk import FAULTS, NAMES, failing, told

HANGS_S = 240
"""A training of this size takes two seconds. It took five minutes to end: agents' time limits passed one by one."""
STEPS = 4
TRAINING = {"train": "reinforcement learning", "sft": "training"}
"""Phase of the metrics that each step has one row in."""


@dataclass
class Done:
    """What came of a command."""

    status: int | str | None
    stderr: str
    operations: int


@dataclass
class Training:
    """A command that trains for a few steps, and writes checkpoints between them."""

    command: str
    model: str

    def operations(self, folder: Path) -> int:
        """Return how many operations there are in a run that nothing goes wrong in."""
        done = self._run(folder, 0, errno.EIO)
        assert done.status == 0, done.stderr[-3000:]
        self._is_whole(folder)
        return done.operations

    def fails_well(self, folder: Path, at: int, error: int, *, stays: bool) -> bool:
        """Train on a disk that fails, and go on when it is mended."""
        done = self._run(folder, at, error, stays=stays)
        assert "Traceback" not in done.stderr, done.stderr[-4000:]
        assert done.status in (0, 2), (done.status, done.stderr[-2000:])
        if done.status == 0:
            self._is_whole(folder)
        else:
            last = done.stderr.splitlines()[-1]
            assert last.startswith("error: "), done.stderr[-2000:]
            assert str(folder) in last, last
        resumed = self._run(folder, 0, error, "--resume")
        assert resumed.status == 0, (done.stderr[-1000:], resumed.stderr[-3000:])
        self._is_whole(folder)
        assert not list(folder.rglob(".*"))
        shutil.rmtree(folder)
        return True

    def _run(self, folder: Path, at: int, error: int, *more: str, stays: bool = False) -> Done:
        status: int | str | None = 0
        words = [self.command, *self._options(folder), *more]
        stderr = folder.with_suffix(".stderr")
        with _said(stderr) as own:
            faulthandler.dump_traceback_later(HANGS_S, exit=True, file=own)
            with failing(folder, at, error, stays=stays) as operations:
                try:
                    cli.app(words)
                except SystemExit as end:
                    status = end.code or 0
            faulthandler.cancel_dump_traceback_later()
        return Done(status, stderr.read_text(), operations.count)

    def _options(self, folder: Path) -> list[str]:
        given = ["--model", self.model, "--output-dir", str(folder), "--checkpoint-every", "2"]
        if self.command == "sft":
            return [*given, "--max-samples", "8", "--batch-size", "2", "--num-epochs", "1", "--logging-steps", "1"]
        return [
            *(*given, "--eval-size", "2", "--sft-examples", "2", "--total-steps", str(STEPS), "--tasks-per-step", "2"),
            *("--samples-per-prompt", "2", "--n-runners", "4", "--max-new-tokens", "8", "--max-samples", "4"),
        ]

    def _is_whole(self, folder: Path) -> None:
        result = folder if self.command == "sft" else folder / "adapter"
        assert load_file(result / "adapter_model.safetensors")
        assert read_json(folder / "summary.json")["steps"] == STEPS
        rows = read_metrics(folder / "metrics.jsonl")
        steps = [row["step"] for row in rows if row["phase"] == TRAINING[self.command] and "loss/eval" not in row]
        assert steps == sorted(set(steps)), steps


@contextlib.contextmanager
def _said(stderr: Path) -> Iterator[int]:
    """Have what this process says as errors go into a file, its threads and libraries included, and drop the rest.

    Yields the descriptor of the standard error that it had before.
    """
    sys.stdout.flush()
    before = [os.dup(descriptor) for descriptor in (1, 2)]
    with open(os.devnull, "wb") as nowhere, stderr.open("wb") as file:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(file.fileno(), 2)
    try:
        yield before[1]
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for descriptor, own in zip((1, 2), before, strict=True):
            os.dup2(own, descriptor)
            os.close(own)


def main(folder: Path, training: Training, tries: int, part: int, parts: int) -> None:
    """Make the tries, or a part of them."""
    rng = random.Random(0)
    operations = training.operations(folder / "unharmed")
    numbers = range(tries)
    for number in numbers[part - 1 :: parts] or numbers[:1]:
        # at random within each part of the run
        at = 1 + int((number + rng.random()) * operations / tries)
        error, stays = FAULTS[number % len(FAULTS)]
        what = f"{NAMES[error]}-{stays}-{at} of {operations}"
        told(what, training.fails_well, folder / str(number), at, error, stays=stays)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Training(sys.argv[2], sys.argv[3]), int(sys.argv[4]), *map(int, sys.argv[5].split("/")))
