"""Rewards of rollouts, read of many at once and remembered of those that have ended."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, defaultdict
from collections.abc import Sequence
from typing import Final

from ...emitter import find_final_reward
from ...store import LightningStore
from ...types import Rollout, Span

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
        self._known: OrderedDict[tuple[str, float], float | None] = OrderedDict()

    async def of(self, rollouts: Sequence[Rollout]) -> list[float | None]:
        """Return the reward of each rollout; None where nobody gave one."""
        keys = [(one.rollout_id, one.end_time or 0.0) for one in rollouts]  # one that runs again ends at another time
        asked = [one for one, key in zip(rollouts, keys, strict=True) if key not in self._known]
        found: dict[str, float | None] = {}
        for start in range(0, len(asked), _AT_ONCE):
            part = asked[start : start + _AT_ONCE]
            found |= await self._read(part)
            for one in part:
                if is_settled(one):
                    self._known[one.rollout_id, one.end_time or 0.0] = found.get(one.rollout_id)
            await asyncio.sleep(0)  # a store in memory answers at once, and others wait for the event loop
        rewards = [self._known[key] if key in self._known else found.get(key[0]) for key in keys]
        while len(self._known) > _KEPT:
            self._known.popitem(last=False)
        return rewards

    async def _read(self, rollouts: Sequence[Rollout]) -> dict[str, float | None]:
        spans: dict[str, list[Span]] = defaultdict(list)
        for span in await self._store.get_reward_spans([one.rollout_id for one in rollouts]):
            spans[span.rollout_id].append(span)
        return {rollout_id: find_final_reward(each) for rollout_id, each in spans.items()}
