"""Work on a disk that fails at each operation in turn; print a line of JSON for each attempt.

    LD_PRELOAD=failing_writes.so python failing_disk.py checkpoints|store FOLDER EVERY

`failing_writes.c` stands between this process and libc, on Linux. EVERY 10 tries every tenth operation. A line is
[what was tried, why it did not hold or null, seconds].
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import itertools
import json
import logging
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args

import torch

from mini_agentic_rl.algorithm.checkpoint import read_progress, restore, write_checkpoint
from mini_agentic_rl.algorithm.grpo import GRPOObjective
from mini_agentic_rl.algorithm.settings import GRPOSettings
from mini_agentic_rl.algorithm.state import RunProgress
from mini_agentic_rl.errors import UserError
from mini_agentic_rl.policy import LearnerSettings, LoraSettings, Policy
from mini_agentic_rl.store import SqlLightningStore
from mini_agentic_rl.store.base import LightningStoreError
from mini_agentic_rl.store.sql import backends
from mini_agentic_rl.store.sql.backends import Synchronous
from mini_agentic_rl.trainer import RunFolder
from mini_agentic_rl.types import EnqueueRolloutRequest
from store.crash import PATIENT, Acknowledged, check_kept
from tiny import tiny_model

FAULTS = tuple(itertools.product((errno.ENOSPC, errno.EIO), (False, True)))
"""Error numbers, and whether all later operations fail too."""
PAGES = 20
"""Pages of SQLite's log after which it is moved into the file: the series of operations is short."""


@contextmanager
def failing(folder: Path, at: int, number: int, *, stays: bool) -> Iterator[Callable[[], bool]]:
    """Let operation `at` on the files of a folder fail with an error number; yields whether it was reached."""
    library = ctypes.CDLL(os.environ["LD_PRELOAD"])
    library.disk_operations.restype = ctypes.c_long
    library.disk_fails(os.fsencode(os.path.realpath(folder)), ctypes.c_long(at), number, int(stays))
    try:
        yield lambda: library.disk_operations() >= at
    finally:
        library.disk_works()


def report(what: str, attempt: Callable[[], bool]) -> bool:
    """Print how an attempt went; return whether there may be more operations."""
    began = time.monotonic()
    more, cause = True, None
    try:
        more = attempt()
    except Exception:
        cause = traceback.format_exc(limit=-4)
    print(json.dumps([what, cause, time.monotonic() - began]), flush=True)
    return more


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

    def fails_well(self, step: int, operation: int, number: int, *, stays: bool) -> bool:
        """Write the checkpoint of a step on a disk that fails at an operation; return whether it was reached."""
        before = self.read()
        message, written = None, None
        with failing(self.run.path, operation, number, stays=stays) as reached:
            try:
                written = self.save(step)
            except UserError as error:
                message = str(error)
            failed = reached()
        steps = self.read()
        assert failed or written is not None, message
        if written is not None:
            assert steps[-1] == step, (before, steps)
        else:
            assert steps[-1] in (before[-1], step), (before, steps)
            assert set(before) <= {*steps, step}, (before, steps)
        if message is not None:
            assert "\n" not in message, message
            assert str(self.run.path) in message, message
        if number == errno.ENOSPC and not stays:
            assert message is None, message  # it is logged, and the run goes on
        return failed


def checkpoints(path: Path, every: int) -> None:
    """Try every operation of a checkpoint that is new, and of one that is there already."""
    for (number, stays), again in itertools.product(FAULTS, (False, True)):
        name = f"{errno.errorcode[number]}-{stays}-{again}"
        training = Training(path / name)
        training.save(1)
        for operation in itertools.count(1, every):
            step = 1 if again else operation + 1
            fault = (step, operation, number)
            if not report(f"{name}-{operation}", lambda: training.fails_well(*fault, stays=stays)):  # noqa: B023
                break


async def _work(store: SqlLightningStore, acknowledged: Acknowledged) -> list[BaseException]:
    """Queue rollouts and work at them, at once; return what was refused."""

    async def produce() -> None:
        requests = [EnqueueRolloutRequest(input=number, config=PATIENT) for number in range(2)]
        acknowledged.queued.update(rollout.rollout_id for rollout in await store.enqueue_many_rollouts(requests))

    refused: list[BaseException] = []
    for _ in range(2):
        calls = (produce(), acknowledged.work_once(store, "a"), acknowledged.work_once(store, "b"))
        refused += [error for error in await asyncio.gather(*calls, return_exceptions=True) if error is not None]
    return refused


async def _works_well(
    path: Path, operation: int, number: int, *, stays: bool, synchronous: Synchronous, closes: bool
) -> bool:
    """Work on a disk that fails at an operation; return whether it was reached.

    Args:
        closes: the store is closed while the disk fails, which keeps what is in its log there.
    """
    acknowledged = Acknowledged()
    refused: list[BaseException] = []
    store = None
    path.parent.mkdir()
    with failing(path.parent, operation, number, stays=stays) as reached:
        try:
            store = SqlLightningStore(path, synchronous=synchronous)
            refused += await _work(store, acknowledged)
            if stays and reached():
                try:
                    await store.enqueue_rollout("task")
                except LightningStoreError as error:
                    refused.append(error)
                else:
                    raise AssertionError("the store said nothing of a disk that stays broken")
            if closes:
                await store.close()
                store = None
        except LightningStoreError as error:
            refused.append(error)
        failed = reached()
    if store is not None:  # the disk works again
        assert not await _work(store, acknowledged)
        await store.close()
    for error in refused:
        if not isinstance(error, LightningStoreError):
            raise error
        assert "\n" not in str(error), error
        assert str(path) in str(error), error
    await check_kept(path, acknowledged)
    return failed


def store(folder: Path, every: int) -> None:
    """Try every operation of a SQLite store, for each fault and each promise about power cuts."""
    backends._CHECKPOINT_PAGES = PAGES
    for (number, stays), synchronous in itertools.product(FAULTS, get_args(Synchronous)):
        for turn, operation in enumerate(itertools.count(1, every)):
            name = f"{errno.errorcode[number]}-{stays}-{synchronous}-{operation}"
            options: dict[str, Any] = {"stays": stays, "synchronous": synchronous, "closes": turn % 2 == 0}
            work = _works_well(folder / name / "store.db", operation, number, **options)
            if not report(name, lambda: asyncio.run(work)):  # noqa: B023
                break


if __name__ == "__main__":
    logging.disable()
    {"checkpoints": checkpoints, "store": store}[sys.argv[1]](Path(sys.argv[2]), int(sys.argv[3]))
