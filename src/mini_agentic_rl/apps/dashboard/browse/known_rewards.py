"""Rewards of rollouts, read of many at once and remembered of those that have ended."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Collection, Sequence
from typing import Final

from ....emitter import find_final_reward
from ....store import LightningStore
from ....types import Rollout, Span

_AT_ONCE: Final = 200
"""Rollouts whose rewards are read at once."""
_KEPT: Final = 200_000
_SETTLED_SECONDS: Final = 10.0
"""Time after the end of a rollout in which spans of it may still come."""


def is_settled(rollout: Rollout) -> bool:
    """Return True if nothing about a rollout changes any more."""
    return rollout.end_time is not None and time.time() > rollout.end_time + _SETTLED_SECONDS


class KnownRewards:
    """Final rewards of the latest attempts in a store.

    Args:
        store: read from the event loop that asks for the rewards.
    """

    def __init__(self, store: LightningStore) -> None:
        self._store = store
        self._known: OrderedDict[str, float | None] = OrderedDict()

    async def of(self, rollouts: Sequence[Rollout]) -> list[float | None]:
        """Return the reward of each rollout; None where nobody gave one."""
        settled = [one.rollout_id for one in rollouts if is_settled(one)]
        rewards = await self.of_ids([one.rollout_id for one in rollouts], settled)
        return [rewards[one.rollout_id] for one in rollouts]

    async def of_ids(self, ids: Sequence[str], settled: Collection[str]) -> dict[str, float | None]:
        """Return the rewards of rollouts by their ids.

        Args:
            ids: of the rollouts.
            settled: ids of those whose rewards stay as they are.
        """
        rewards: dict[str, float | None] = {one: self._known[one] for one in settled if one in self._known}
        asked = [one for one in ids if one not in rewards]
        parts = [asked[start : start + _AT_ONCE] for start in range(0, len(asked), _AT_ONCE)]
        for found in await asyncio.gather(*map(self._read, parts)):
            rewards |= found
        self._known |= {one: rewards[one] for one in settled}
        while len(self._known) > _KEPT:
            self._known.popitem(last=False)
        return rewards

    async def _read(self, ids: Sequence[str]) -> dict[str, float | None]:
        spans: dict[str, list[Span]] = {one: [] for one in ids}
        for span in await self._store.get_reward_spans(ids):
            spans[span.rollout_id].append(span)
        await asyncio.sleep(0)  # a store in memory answers at once, and others wait for the event loop
        return {one: find_final_reward(each) for one, each in spans.items()}
