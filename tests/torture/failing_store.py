"""Work with a SQLite store on a disk that fails at each write in turn; print a line of JSON for each try.

    python failing_store.py FOLDER EVERY

EVERY 10 tries every tenth write. A line is [what was tried, why it did not hold or null, seconds].
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import sys
from pathlib import Path
from typing import Any, get_args

from mini_agentic_rl.store import SqlLightningStore
from mini_agentic_rl.store.base import LightningStoreError
from mini_agentic_rl.store.sql import backends
from mini_agentic_rl.store.sql.backends import Synchronous
from mini_agentic_rl.types import EnqueueRolloutRequest
from store.crash import PATIENT, Acknowledged, check_kept
from torture.failing_disk import FAULTS, NAMES, failing, told

ROUNDS = 2
PAGES = 20
"""After so many the log is moved into the file: the series is short."""


async def _work(store: SqlLightningStore, acknowledged: Acknowledged) -> list[BaseException]:
    """Queue rollouts and work at them, at once; return what was refused."""

    async def produce() -> None:
        requests = [EnqueueRolloutRequest(input=number, config=PATIENT) for number in range(2)]
        acknowledged.queued.update(rollout.rollout_id for rollout in await store.enqueue_many_rollouts(requests))

    refused: list[BaseException] = []
    for _ in range(ROUNDS):
        calls = (produce(), acknowledged.work_once(store, "a"), acknowledged.work_once(store, "b"))
        refused += [one for one in await asyncio.gather(*calls, return_exceptions=True) if one is not None]
    return refused


async def _refusal(store: SqlLightningStore) -> LightningStoreError:
    """Return what the store says of a disk that stays broken."""
    try:
        await store.enqueue_rollout("task")
    except LightningStoreError as error:
        return error
    raise AssertionError("a disk that stays broken was not told")


def _fails_well(path: Path, *fault: Any, **options: Any) -> bool:
    return asyncio.run(_works_well(path, *fault, **options))


async def _works_well(
    path: Path, operation: int, number: int, *, stays: bool, synchronous: Synchronous, closes: bool
) -> bool:
    """Work on a disk that fails at an operation; return False if there are not so many.

    Args:
        closes: the store is closed while the disk fails, which keeps what is in its log there.
    """
    acknowledged = Acknowledged()
    refused: list[BaseException] = []
    store = None
    path.parent.mkdir()
    with failing(path.parent, operation, number, stays=stays) as operations:
        try:
            store = SqlLightningStore(path, synchronous=synchronous)
            refused += await _work(store, acknowledged)
            if stays and operations.count >= operation:
                refused.append(await _refusal(store))
            if closes:
                await store.close()
                store = None
        except Exception as error:
            refused.append(error)
    if store is not None:  # what was broken is mended
        assert not await _work(store, acknowledged)
        await store.close()
    for error in refused:
        if not isinstance(error, LightningStoreError):
            raise error
        assert "\n" not in str(error), error
        assert str(path) in str(error), error
    await check_kept(path, acknowledged)
    return operations.count >= operation


def main(folder: Path, every: int) -> None:
    """Try every operation, for each fault, and for each promise about power cuts."""
    logging.disable()
    backends._CHECKPOINT_PAGES = PAGES
    for (number, stays), synchronous in itertools.product(FAULTS, get_args(Synchronous)):
        for turn, operation in enumerate(itertools.count(1, every)):
            what = f"{NAMES[number]}-{stays}-{synchronous}-{operation}"
            options = {"stays": stays, "synchronous": synchronous, "closes": turn % 2 == 0}
            if not told(what, _fails_well, folder / what / "store.db", operation, number, **options):
                break


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
