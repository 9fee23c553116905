"""Groups of a store that no query asks for by group: each rollout is read once, the oldest first, and then what comes.

Reading goes on in a task of the event loop, which rests as long as it has worked, so that pages are answered meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Final

from ...store import LightningStore
from ...types import Rollout
from .base import GROUP_KEY, rl_step

_AT_ONCE: Final = 500
"""Rollouts that are read at once."""


@dataclass
class IndexedGroup:
    """Rollouts of a group."""

    name: str
    number: int
    """Number of its first rollout, counted as they were read."""
    step: int | None
    ids: list[str] = field(default_factory=list)


class GroupIndex:
    """The groups of a store, in the order of their first rollouts.

    Args:
        store: read from the event loop that asks for the groups.
    """

    def __init__(self, store: LightningStore) -> None:
        self._store = store
        self._task: asyncio.Task[None] | None = None
        self._groups: dict[str, IndexedGroup] = {}
        self._numbers: list[int] = []
        self._names: list[str] = []
        self._last: str | None = None
        self._count = 0
        self.read = 0
        """Number of rollouts of the store that were read."""
        self._total = 0
        self._whole = False
        self.deletions = 0
        """Number of times at which rollouts were found deleted: their ids may stay in their groups."""

    async def follow(self, seconds: float) -> bool:
        """Read on, for at most so many seconds; True once all that the store holds was read.

        Raises:
            LightningStoreError: the store cannot be read.
        """
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._read_on())
            self._task.add_done_callback(_look_at)
        done, _ = await asyncio.wait({self._task}, timeout=seconds)
        if done:
            self._task.result()
        return bool(done)

    def share_read(self) -> float:
        """Return the share of the rollouts that was read; 1 once all were, whatever has come since."""
        return 1.0 if self._whole or not self._total else self.read / self._total

    def group(self, name: str) -> IndexedGroup | None:
        """Return a group, or None where none of its rollouts was read."""
        return self._groups.get(name)

    def before(self, number: int | None, limit: int) -> list[IndexedGroup]:
        """Return the groups whose first rollout has a number below this, the newest first; None: the newest of all."""
        end = len(self._numbers) if number is None else bisect_left(self._numbers, number)
        return [self._groups[name] for name in reversed(self._names[max(0, end - limit) : end])]

    async def close(self) -> None:
        """End the reading."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await self._task

    async def _read_on(self) -> None:
        while True:
            began = time.monotonic()
            # The last one that was read is read again: in another place, rollouts before it were deleted.
            known = 0 if self._last is None else 1
            found = await self._store.query_rollouts(limit=_AT_ONCE, offset=self.read - known)
            rollouts = list(found)
            self._total = found.total
            if known and (not rollouts or rollouts[0].rollout_id != self._last):
                self.deletions += 1
                await self._find_last()
                continue
            self._add(rollouts[known:])
            if self.read >= self._total:
                self._whole = True
                return
            await asyncio.sleep(time.monotonic() - began)

    def _add(self, rollouts: list[Rollout]) -> None:
        for rollout in rollouts:
            metadata = rollout.metadata or {}
            name = metadata.get(GROUP_KEY)
            if name is not None:
                group = self._groups.get(str(name))
                if group is None:
                    group = IndexedGroup(str(name), self._count, rl_step(metadata.get("step")))
                    self._groups[group.name] = group
                    self._numbers.append(self._count)
                    self._names.append(group.name)
                group.ids.append(rollout.rollout_id)
            self.read += 1
            self._count += 1
            self._last = rollout.rollout_id

    async def _find_last(self) -> None:
        """Look for the rollout that was read last where it is now; begin anew where it was deleted itself, or most of
        what was read."""
        end = min(self.read, self._total)
        while end > 0 and self._count <= 2 * self._total:
            began = time.monotonic()
            start = max(0, end - _AT_ONCE)
            found = await self._store.query_rollouts(limit=end - start, offset=start)
            places = [place for place, one in enumerate(found, start) if one.rollout_id == self._last]
            if places:
                self.read = places[0] + 1
                return
            end = start
            await asyncio.sleep(time.monotonic() - began)
        self._groups, self._numbers, self._names = {}, [], []
        self.read, self._count, self._last, self._whole = 0, 0, None, False


def _look_at(task: asyncio.Task[None]) -> None:
    """Retrieve the error of a reading for which nobody waits any more."""
    if not task.cancelled():
        task.exception()
