"""The disk fails at every write, for want of room and broken, once and for good: what was told to be kept is kept."""

from __future__ import annotations

import errno
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from safetensors.torch import load_file

from mini_agentic_rl.atomic_files import read_json
from mini_agentic_rl.metrics import read_metrics

from . import failing_disk
from .conftest import SIZE, Attack
from .failing_disk import FAULTS, NAMES, Done, Preloaded

HERE = Path(__file__).parent
EVERY = max(1, round(1 / SIZE))
SOON_S = 60
"""The longest that a training may take to end when its disk fails."""
WHOLE_S = 300
"""The longest that one may take whose disk works: seconds, on a machine of its own."""
STEPS = 4
TRAINING = {"train": "reinforcement learning", "sft": "training"}
"""Phase of the metrics that each step has one row in."""


@pytest.fixture(scope="module")
def preloaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Preloaded]:
    """Start processes whose disk can be made to fail."""
    why = failing_disk.missing()
    if why is not None:
        pytest.skip(why)
    made = Preloaded(tmp_path_factory.mktemp("preloaded"))
    yield made
    made.close()


def _count(attack: Attack, done: Done) -> None:
    """Count the tries that a program has made."""
    for line in done.stdout.splitlines():
        what, cause, seconds = json.loads(line)
        with attack.attempt(what):
            assert cause is None, cause
        attack.row.slowest_s = max(attack.row.slowest_s, seconds)
    with attack.attempt("the program"):
        assert done.status == 0, done.stderr[-3000:]
    attack.row.tried -= 1
    attack.row.held -= done.status == 0


@pytest.mark.timeout(7200)
def test_the_disk_fails_at_each_operation_of_a_checkpoint(attack: Attack, preloaded: Preloaded, tmp_path: Path) -> None:
    _count(attack, preloaded.run(HERE / "failing_checkpoint.py", str(tmp_path), str(EVERY), timeout=3600))


@pytest.mark.timeout(7200)
def test_the_disk_fails_at_each_write_of_a_store(attack: Attack, preloaded: Preloaded, tmp_path: Path) -> None:
    _count(attack, preloaded.run(HERE / "failing_store.py", str(tmp_path), str(EVERY), timeout=3600))


@pytest.mark.timeout(7200)
@pytest.mark.parametrize(("command", "whole"), [("train", 120), ("sft", 80)])
def test_the_disk_of_a_training_fails_at_some_write(
    attack: Attack, preloaded: Preloaded, tiny_folder: str, tmp_path: Path, command: str, whole: int
) -> None:
    training = Training(preloaded, command, tiny_folder)
    rng = random.Random(0)
    operations = training.operations(tmp_path / "unharmed")
    tries = attack.times(whole if SIZE >= 1 else whole // 16)
    for number in attack.part(range(tries)):
        # spread over the run, at random within each part
        at = 1 + int((number + rng.random()) * operations / tries)
        error, stays = FAULTS[number % len(FAULTS)]
        with attack.attempt((NAMES[error], stays, f"{at} of {operations}")):
            training.fails_well(tmp_path / str(number), at, error, stays=stays)


@dataclass
class Training:
    """A command that trains for a few steps, and writes checkpoints between them."""

    preloaded: Preloaded
    command: str
    model: str

    def operations(self, folder: Path) -> int:
        """Return how many operations there are in a run that nothing goes wrong in."""
        done = self._run(folder, 0, errno.EIO)
        assert done.status == 0, done.stderr[-3000:]
        return int(done.stdout.rpartition("operations: ")[2])

    def fails_well(self, folder: Path, at: int, error: int, *, stays: bool) -> None:
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

    def _run(self, folder: Path, at: int, error: int, *more: str, stays: bool = False) -> Done:
        fault = (str(folder), str(at), str(error), str(stays))
        return self.preloaded.run(
            HERE / "failing_command.py",
            *fault,
            self.command,
            *self._options(folder),
            *more,
            timeout=SOON_S if at else WHOLE_S,
        )

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
