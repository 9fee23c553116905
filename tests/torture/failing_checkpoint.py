"""Write checkpoints on a disk that fails at each operation in turn; print a line of JSON for each try.

    python failing_checkpoint.py FOLDER EVERY

EVERY 10 tries every tenth operation. A line is [what was tried, why it did not hold or null, seconds].
"""

from __future__ import annotations

import errno
import itertools
import logging
import sys
from pathlib import Path

import torch

from mini_agentic_rl.algorithm.checkpoint import read_progress, restore, write_checkpoint
from mini_agentic_rl.algorithm.grpo import GRPOObjective
from mini_agentic_rl.algorithm.settings import GRPOSettings
from mini_agentic_rl.algorithm.state import RunProgress
from mini_agentic_rl.errors import UserError
from mini_agentic_rl.policy import LearnerSettings, LoraSettings, Policy
from mini_agentic_rl.trainer import RunFolder
from tiny import tiny_model
from torture.failing_disk import FAULTS, NAMES, failing, told


class Training:
    """A policy that has learnt something, and the folder of its run."""

    def __init__(self, path: Path) -> None:
        self.policy = Policy.load(tiny_model(), lora=LoraSettings(r=2))
        self.objective = self.policy.run(
            lambda: GRPOObjective({"default": self.policy.learner(LearnerSettings())}, GRPOSettings())
        )
        self.policy.run(self._learn)
        self.run = RunFolder(path)
        self.run.begin({"model": "m"})

    def _learn(self) -> None:
        for matrix in self.policy.model.trainable():
            matrix.grad = torch.ones_like(matrix)
        self.objective.learners["default"]._optimizer.step()

    def save(self, step: int) -> Path | None:
        """Write a checkpoint, as the loop does."""
        progress = RunProgress(step=step)

        def write(folder: Path) -> None:
            write_checkpoint(folder, self.policy, self.objective, progress, None)

        return self.policy.run(lambda: self.run.save_checkpoint(step, write))

    def read(self) -> list[int]:
        """Return the steps of the checkpoints that a resumed run finds, after a look that each is whole."""
        self.run.begin({"model": "m"}, resume=True)
        for step, folder in self.run.checkpoints():
            assert read_progress(folder).step == step
            self.policy.run(lambda folder=folder: restore(folder, self.policy, self.objective))  # type: ignore[misc]
        left = list(self.run.path.rglob(".*"))
        assert not left, left
        return [step for step, _ in self.run.checkpoints()]


def _fails_well(training: Training, step: int, operation: int, number: int, *, stays: bool) -> bool:
    """Write the checkpoint of a step on a disk that fails at an operation; return False if there are not so many."""
    before = training.read()
    told, written = None, None
    with failing(training.run.path, operation, number, stays=stays) as operations:
        try:
            written = training.save(step)
        except UserError as error:
            told = str(error)
    found = training.read()
    if operations.count < operation:
        assert written is not None, told
    if written is not None:
        assert found[-1] == step, (before, found)
    else:
        assert found[-1] in (before[-1], step), (before, found)
        assert set(before) <= {*found, step}, (before, found)
    if told is not None:
        assert "\n" not in told, told
        assert str(training.run.path) in told, told
    if number == errno.ENOSPC and not stays:
        assert told is None, told  # it is logged, and the run goes on
    return operations.count >= operation


def main(path: Path, every: int) -> None:
    """Try every operation: of a checkpoint that is new, and of one that is there already."""
    logging.disable()
    for (number, stays), again in itertools.product(FAULTS, (False, True)):
        training = Training(path / f"{NAMES[number]}-{stays}-{again}")
        training.save(1)
        for operation in itertools.count(1, every):
            step = 1 if again else operation + 1
            what = f"{training.run.path.name}-{operation}"
            if not told(what, _fails_well, training, step, operation, number, stays=stays):
                break


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
