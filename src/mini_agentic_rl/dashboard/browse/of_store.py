"""Any store, read through the queries that every store has: a store server's, one in memory, PostgreSQL, MongoDB.

A page goes on beyond the rollout with which the one before ended, and what no query of a store filters by is looked for
in the rollouts themselves, for a bounded time: a page may end before it is full, and its cursor goes on. Groups are
indexed once, and the rewards of one are remembered once nothing about it changes any more. Rewards are read of many
rollouts at once, of those that pass all else.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from ...store import LightningStore, LightningStoreStatistics
from ...types import Attempt, ResourcesUpdate, Rollout, RolloutStatus, Span, Worker
from .base import MAX_GROUP, MAX_RESOURCES, MAX_SPANS, GroupRow, RolloutFilter, RolloutPage, RolloutRow, preview_of
from .group_index import GroupIndex, IndexedGroup
from .known_rewards import KnownRewards, is_settled
from .store_rows import is_wanted_reward, may_pass, row_of, span_text, stands_in, texts_of

_SECONDS: Final = 0.025
"""Time after which a page ends with what it has found."""
_PATIENCE_SECONDS: Final = 5.0
"""Time for which one group is looked for in a store that is being indexed."""
_LOOKED_AT: Final = 100
_AT_ONCE: Final = 8
"""Rollouts whose spans are asked for at a time, where the store is a server."""
_GROUPS_AT_ONCE: Final = 20
_GROUPS_SECONDS: Final = 0.1
_KEPT: Final = 20_000
"""Groups whose rewards are remembered."""
_COUNTING_SHARE: Final = 0.05
"""Share of the time that counting may take: some databases count row by row."""
_OLDEST_COUNTS: Final = 10.0


class StoreBrowser:
    """Reads of an open store.

    Args:
        store: read from the event loop that serves the dashboard; it may be called from there.
        owned: close the store with the browser.
    """

    def __init__(self, store: LightningStore, *, owned: bool = False) -> None:
        self.store = store
        self._owned = owned
        self._rewards = KnownRewards(store)
        self._groups = GroupIndex(store)
        self._lines: OrderedDict[tuple[str, int], list[float | None]] = OrderedDict()
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._counting: asyncio.Task[tuple[LightningStoreStatistics, float, float]] | None = None
        self._counts: tuple[LightningStoreStatistics, float, float] | None = None
        """Counts of the store, the time at which it counted, and the time until which it is not asked to again."""

    async def totals(self) -> Mapping[str, Any]:
        await self._groups.follow(0)
        counts = await self._counted()
        rollouts, spans = counts.get("total_rollouts", 0), counts.get("total_spans", 0)
        read = 1.0 if self._groups.whole or not rollouts else min(1.0, self._groups.read / rollouts)
        return {"status": {}, "rollouts": rollouts, "spans": spans, "indexed": int(spans * read)}

    async def page(self, wanted: RolloutFilter, cursor: str | None, limit: int) -> RolloutPage:
        beyond, end = cursor, time.monotonic() + _SECONDS
        items: list[RolloutRow] = []
        status = cast("list[RolloutStatus]", list(wanted.status)) or None
        plain = wanted == RolloutFilter(status=wanted.status)
        while True:
            asked = limit - len(items) + 1 if plain else _LOOKED_AT
            found = list(await self.store.walk_rollouts(beyond, status_in=status, sort_order="desc", limit=asked))
            rows = await self._passing(found, wanted, end)
            for place, row in enumerate(rows, 1):
                beyond = found[place - 1].rollout_id
                if row is not None:
                    items.append(row)
                if len(items) == limit:
                    return RolloutPage(items, beyond if place < len(found) or len(found) == asked else None)
            if len(rows) == len(found) < asked:
                return RolloutPage(items, None)
            if time.monotonic() > end:
                return RolloutPage(items, beyond)

    async def rows(self, ids: Sequence[str]) -> Sequence[RolloutRow]:
        found = list(await self.store.query_rollouts(rollout_id_in=list(ids)))
        rewards = await self._rewards.of(found)
        rows = [row_of(one) for one in found]
        for row, reward in zip(rows, rewards, strict=True):
            row["reward"] = reward
        return rows

    async def rollout(self, rollout_id: str) -> Rollout | None:
        return await self.store.get_rollout_by_id(rollout_id)

    async def attempts(self, rollout_id: str) -> Sequence[Attempt]:
        return list(await self.store.query_attempts(rollout_id))

    async def spans(self, rollout_id: str) -> Sequence[Span]:
        async with self._turns:
            return list(await self.store.query_spans(rollout_id, limit=MAX_SPANS))

    async def groups(self, cursor: str | None, limit: int) -> tuple[Sequence[GroupRow], str | None]:
        before = None if cursor is None else _whole_number(cursor)
        await self._groups.follow(_SECONDS)
        shown = self._groups.before(before, limit)
        lines: list[GroupRow] = []
        end = time.monotonic() + _GROUPS_SECONDS
        for start in range(0, len(shown), _GROUPS_AT_ONCE):
            if start and time.monotonic() > end:
                return lines, str(shown[start - 1].number)
            lines += await self._lines_of(shown[start : start + _GROUPS_AT_ONCE])
        return lines, str(shown[-1].number) if len(shown) == limit else None

    async def group(self, group: str) -> Sequence[str]:
        await self._groups.follow(_PATIENCE_SECONDS if self._groups.group(group) is None else _SECONDS)
        found = self._groups.group(group)
        return [] if found is None else found.ids[:MAX_GROUP]

    async def indexed(self, seconds: float) -> bool:
        return await self._groups.follow(seconds)

    async def workers(self) -> Sequence[Worker]:
        return list(await self.store.query_workers(sort_by="worker_id"))

    async def resources(self) -> Sequence[ResourcesUpdate]:
        return list(await self.store.query_resources(sort_order="desc", limit=MAX_RESOURCES))

    async def mark(self) -> str:
        counts = dict(await self._counted())
        newest = await self.store.walk_rollouts(sort_order="desc", limit=1)
        counts.pop("uptime", None)
        latest = (f"{one.rollout_id} {one.status}" for one in newest)
        return json.dumps([counts, self._groups.read, *latest], default=str)

    async def close(self) -> None:
        await self._groups.close()
        if self._owned:
            await self.store.close()

    async def _counted(self) -> LightningStoreStatistics:
        """Return what the store counts, where that takes long as it was counted a short while ago."""
        counts, at, until = self._counts or ({}, float("-inf"), float("-inf"))
        now = time.monotonic()
        if now > until:
            if self._counting is None or self._counting.done():
                self._counting = asyncio.create_task(self._count())
            done, _ = await asyncio.wait({self._counting}, timeout=_SECONDS if now - at < _OLDEST_COUNTS else None)
            if done:
                self._counts = self._counting.result()
                return self._counts[0]
        return counts

    async def _count(self) -> tuple[LightningStoreStatistics, float, float]:
        began = time.monotonic()
        counts = await self.store.statistics()
        ended = time.monotonic()
        return counts, ended, ended + (ended - began) / _COUNTING_SHARE

    async def _lines_of(self, groups: Sequence[IndexedGroup]) -> list[GroupRow]:
        """Return the lines of groups, but of those whose rollouts were deleted. The rewards of a group that has ended
        are remembered until a rollout is added to it; its first rollout is read each time, and with it the task."""
        ids = [one for group in groups for one in (group.ids[:1] if self._settled(group) else group.ids)]
        found = list(await self.store.query_rollouts(rollout_id_in=ids)) if ids else []
        there = {one.rollout_id: one for one in found}
        unsettled = [there[one] for group in groups if not self._settled(group) for one in group.ids if one in there]
        known = {
            one.rollout_id: reward for one, reward in zip(unsettled, await self._rewards.of(unsettled), strict=True)
        }
        lines = []
        for group in groups:
            rewards = self._settled(group)
            if rewards is not None and group.ids[0] not in there:  # it was deleted: the next look is at all of them
                del self._lines[group.name, len(group.ids)]
                continue
            if rewards is None:
                members = [there[one] for one in group.ids if one in there]
                rewards = [known.get(one.rollout_id) for one in members]
                if members and len(members) == len(group.ids) and all(map(is_settled, members)):
                    self._lines[group.name, len(group.ids)] = rewards
            if rewards:  # else all were deleted
                task = next(there[one].input for one in group.ids if one in there)
                lines.append(
                    GroupRow(
                        group=group.name, step=group.step, count=len(rewards), rewards=rewards, task=preview_of(task)
                    )
                )
        while len(self._lines) > _KEPT:
            self._lines.popitem(last=False)
        return lines

    def _settled(self, group: IndexedGroup) -> list[float | None] | None:
        """Return the rewards of a group that are remembered, or None."""
        return self._lines.get((group.name, len(group.ids)))

    async def _passing(self, rollouts: Sequence[Rollout], wanted: RolloutFilter, end: float) -> list[RolloutRow | None]:
        """Return the row of each rollout, None for one that does not pass. Where spans are searched, those after `end`
        are left out."""
        rows: list[RolloutRow | None] = [row_of(rollout) for rollout in rollouts]
        asked = [place for place, row in enumerate(rows) if row is not None and may_pass(rollouts[place], row, wanted)]
        by_reward = wanted.reward_min is not None or wanted.reward_max is not None
        known: dict[int, float | None] = {}
        if by_reward:
            known = await self._rewards_at(asked, rollouts)
            asked = [place for place in asked if is_wanted_reward(known[place], wanted)]
        searched = len(rows)
        if wanted.text:
            asked, searched = await self._mentioning(asked, rollouts, wanted.text, end)
        if not by_reward:
            known = await self._rewards_at(asked, rollouts)
        passing = set(asked)
        for place, row in enumerate(rows):
            if row is not None and place in passing:
                row["reward"] = known[place]
            else:
                rows[place] = None
        return rows[:searched]

    async def _rewards_at(self, places: Sequence[int], rollouts: Sequence[Rollout]) -> dict[int, float | None]:
        return dict(zip(places, await self._rewards.of([rollouts[place] for place in places]), strict=True))

    async def _mentioning(
        self, places: Sequence[int], rollouts: Sequence[Rollout], text: str, end: float
    ) -> tuple[list[int], int]:
        """Return the places of the rollouts in which a text stands, and how many were looked at until `end`."""
        found: list[int] = []
        for start in range(0, len(places), _AT_ONCE):
            part = places[start : start + _AT_ONCE]
            if start and time.monotonic() > end:
                return found, part[0]
            mention = await asyncio.gather(*(self._mentions(rollouts[place], text) for place in part))
            found += [place for place, stands in zip(part, mention, strict=True) if stands]
        return found, len(rollouts)

    async def _mentions(self, rollout: Rollout, text: str) -> bool:
        """Return True if a text stands in a rollout or in its spans."""
        if stands_in(text, texts_of(rollout)):
            return True
        return stands_in(text, map(span_text, await self.store.query_spans(rollout.rollout_id)))


def _whole_number(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 19:
        raise ValueError(f"cursor {text[:40]!r}: expected that of an earlier page")
    return int(text)
