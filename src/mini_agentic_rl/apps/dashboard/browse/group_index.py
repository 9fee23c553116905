"""Groups of a store that no query asks for by group: each rollout is read once, the oldest first, and then what comes.

Reading goes on in a task of the event loop, which rests as long as it has worked, so that pages are answered meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from ....store import LightningStore
from ....types import Rollout
from .base import GROUP_KEY, rl_step
from .known_rewards import is_settled

_AT_ONCE: Final = 250
"""Rollouts that are read at once."""
_REMEMBERED: Final = 100
"""Rollouts read last of which one has to be there still for the reading to go on."""


@dataclass
class IndexedGroup:
    """Rollouts of a group."""

    name: str
    number: int
    """Number of its first rollout, counted as they were read."""
    step: int | None
    ids: list[str] = field(default_factory=list)
    """Ids of its rollouts; those that were deleted since may be among them."""
    unsettled: list[str] = field(default_factory=list)
    """Ids of those about which something may change, as far as is known."""

    def settle(self, ids: Iterable[str]) -> None:
        """Note that nothing changes about these any more."""
        done = set(ids)
        self.unsettled = [one for one in self.unsettled if one not in done]

    def forget(self, ids: Iterable[str]) -> None:
        """Take out rollouts that were deleted."""
        gone = set(ids)
        self.ids = [one for one in self.ids if one not in gone]
        self.settle(gone)


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
        self._last: deque[str] = deque(maxlen=_REMEMBERED)
        self.read = 0
        """Number of rollouts that were read."""
        self.whole = False
        """True once all that the store held were read."""

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
            try:
                found = await self._store.walk_rollouts(self._last[-1] if self._last else None, limit=_AT_ONCE)
            except ValueError:
                if not self._last:
                    raise
                self._go_back()
                continue
            for rollout in found:
                self._add(rollout)
            if len(found) < _AT_ONCE:
                self.whole = True
                return
            await asyncio.sleep(time.monotonic() - began)

    def _add(self, rollout: Rollout) -> None:
        metadata = rollout.metadata or {}
        name = metadata.get(GROUP_KEY)
        if name is not None:
            group = self._groups.get(str(name))
            if group is None:
                group = IndexedGroup(str(name), self.read, rl_step(metadata.get("step")))
                self._groups[group.name] = group
                self._numbers.append(self.read)
                self._names.append(group.name)
            group.ids.append(rollout.rollout_id)
            if not is_settled(rollout):
                group.unsettled.append(rollout.rollout_id)
        self.read += 1
        self._last.append(rollout.rollout_id)

    def _go_back(self) -> None:
        """Read on beyond the rollout before the one that was read last, which was deleted; begin anew where so many
        were that none is remembered."""
        self._last.pop()
        if not self._last:
            self._groups, self._numbers, self._names = {}, [], []
            self.read, self.whole = 0, False


def _look_at(task: asyncio.Task[None]) -> None:
    """Retrieve the error of a reading for which nobody waits any more."""
    if not task.cancelled():
        task.exception()
