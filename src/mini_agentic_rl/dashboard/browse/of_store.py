"""Any store, read through the queries that every store has: a store server's, one in memory, PostgreSQL, MongoDB.

Pages are counted from the newest rollout (offset paging), and what no query of a store filters by is looked for in the
rollouts themselves, for a bounded time: a page may end before it is full, and its cursor goes on. Groups are indexed
once, and a line of one is remembered once nothing about it changes any more. Rewards are read of many rollouts at once,
of those that pass all else.
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
from .store_rows import has_wanted_reward, may_pass, row_of, span_text, stands_in, texts_of

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
"""Lines of groups that are remembered."""
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
        self._lines: OrderedDict[tuple[str, int, int], GroupRow] = OrderedDict()
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._counting: asyncio.Task[tuple[LightningStoreStatistics, float, float]] | None = None
        self._counts: tuple[LightningStoreStatistics, float, float] | None = None
        """Counts of the store, the time at which it counted, and the time until which it is not asked to again."""

    async def totals(self) -> Mapping[str, Any]:
        await self._groups.follow(0)
        counts = await self._counted()
        rollouts, spans = counts.get("total_rollouts", 0), counts.get("total_spans", 0)
        return {"status": {}, "rollouts": rollouts, "spans": spans, "indexed": int(spans * self._groups.share_read())}

    async def page(self, wanted: RolloutFilter, cursor: str | None, limit: int) -> RolloutPage:
        (at, total), end = _place(cursor), time.monotonic() + _SECONDS
        items: list[RolloutRow] = []
        status = cast("list[RolloutStatus]", list(wanted.status)) or None
        plain = wanted == RolloutFilter(status=wanted.status)
        while True:
            looked_at = limit - len(items) if plain else _LOOKED_AT
            found = await self.store.query_rollouts(status_in=status, sort_order="desc", limit=looked_at, offset=at)
            moved = 0 if total is None else max(0, found.total - total)  # by those that were queued since
            total = found.total
            rollouts = list(found)[moved:]
            at += moved
            for row in await self._passing(rollouts, total - at - 1, wanted, end):
                at += 1
                if row is not None:
                    items.append(row)
                if len(items) == limit:
                    return RolloutPage(items, f"{at}.{total}" if at < total else None)
            if at >= total or not len(found):
                return RolloutPage(items, None)
            if time.monotonic() > end:
                return RolloutPage(items, f"{at}.{total}")

    async def rows(self, ids: Sequence[str]) -> Sequence[RolloutRow]:
        found = list(await self.store.query_rollouts(rollout_id_in=list(ids)))
        rewards = await self._rewards.of(found)
        return [row_of(one, number, reward) for number, (one, reward) in enumerate(zip(found, rewards, strict=True))]

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
        ids = [] if found is None else found.ids[:MAX_GROUP]
        if ids and self._groups.deletions:
            ids = [one.rollout_id for one in await self.store.query_rollouts(rollout_id_in=ids)]
        return ids

    async def indexed(self, seconds: float) -> bool:
        return await self._groups.follow(seconds)

    async def workers(self) -> Sequence[Worker]:
        return list(await self.store.query_workers(sort_by="worker_id"))

    async def resources(self) -> Sequence[ResourcesUpdate]:
        return list(await self.store.query_resources(sort_order="desc", limit=MAX_RESOURCES))

    async def mark(self) -> str:
        counts = dict(await self._counted())
        newest = await self.store.query_rollouts(sort_order="desc", limit=1)
        counts.pop("uptime", None)
        latest = (f"{one.rollout_id} {one.status}" for one in newest)
        return json.dumps([counts, newest.total, self._groups.read, *latest], default=str)

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
        """Return the lines of groups, but of those whose rollouts were deleted; remember one that stays as it is: when
        it has ended, and until a rollout is added to it or deleted from it."""
        deletions = self._groups.deletions
        states = {group.name: (group.name, len(group.ids), deletions) for group in groups}
        lines = {name: line for name, state in states.items() if (line := self._lines.get(state)) is not None}
        missing = [group for group in groups if group.name not in lines]
        ids = [one for group in missing for one in group.ids]
        found = list(await self.store.query_rollouts(rollout_id_in=ids)) if ids else []
        rollouts = {one.rollout_id: one for one in found}
        rewards = dict(zip(rollouts, await self._rewards.of(found), strict=True))
        for group in missing:
            members = [rollouts[one] for one in group.ids if one in rollouts]
            if members:
                lines[group.name] = line = GroupRow(
                    group=group.name,
                    step=group.step,
                    count=len(members),
                    rewards=[rewards[one.rollout_id] for one in members],
                    task=preview_of(members[0].input),
                )
                if all(map(is_settled, members)):
                    self._lines[states[group.name]] = line
        while len(self._lines) > _KEPT:
            self._lines.popitem(last=False)
        return [lines[group.name] for group in groups if group.name in lines]

    async def _passing(
        self, rollouts: Sequence[Rollout], newest: int, wanted: RolloutFilter, end: float
    ) -> list[RolloutRow | None]:
        """Return the row of each rollout, None for one that does not pass; the first has the number `newest`. Where
        spans are searched, those after `end` are left out."""
        rows = [row_of(rollout, newest - index, None) for index, rollout in enumerate(rollouts)]
        asked = [(one, row) for one, row in zip(rollouts, rows, strict=True) if may_pass(one, row, wanted)]
        if wanted.reward_min is not None or wanted.reward_max is not None:
            await self._put_rewards(asked)
            asked = [(one, row) for one, row in asked if has_wanted_reward(row, wanted)]
        searched = len(rows)
        if wanted.text:
            asked, searched = await self._mentioning(asked, wanted.text, newest, searched, end)
        await self._put_rewards([(one, row) for one, row in asked if row["reward"] is None])
        passes = {row["number"] for _, row in asked}
        return [row if row["number"] in passes else None for row in rows[:searched]]

    async def _put_rewards(self, found: Sequence[tuple[Rollout, RolloutRow]]) -> None:
        for (_, row), reward in zip(found, await self._rewards.of([one for one, _ in found]), strict=True):
            row["reward"] = reward

    async def _mentioning(
        self, asked: Sequence[tuple[Rollout, RolloutRow]], text: str, newest: int, searched: int, end: float
    ) -> tuple[list[tuple[Rollout, RolloutRow]], int]:
        """Return those in which a text stands, and how many of `searched` rollouts were looked at until `end`."""
        found: list[tuple[Rollout, RolloutRow]] = []
        for start in range(0, len(asked), _AT_ONCE):
            part = asked[start : start + _AT_ONCE]
            if start and time.monotonic() > end:
                return found, newest - part[0][1]["number"]
            mention = await asyncio.gather(*(self._mentions(one, text) for one, _ in part))
            found += [each for each, passes in zip(part, mention, strict=True) if passes]
        return found, searched

    async def _mentions(self, rollout: Rollout, text: str) -> bool:
        """Return True if a text stands in a rollout or in its spans."""
        if stands_in(text, texts_of(rollout)):
            return True
        return stands_in(text, map(span_text, await self.store.query_spans(rollout.rollout_id)))


def _place(cursor: str | None) -> tuple[int, int | None]:
    """Return how many rollouts come before a page, and how many there were in all when that was counted."""
    if cursor is None:
        return 0, None
    at, _, total = cursor.partition(".")
    return _whole_number(at), _whole_number(total) if total else None


def _whole_number(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 19:
        raise ValueError(f"cursor {text[:40]!r}: expected that of an earlier page")
    return int(text)
