"""Any store, read through the queries that every store has: a store server's, one in memory, PostgreSQL, MongoDB.

A page goes on beyond the rollout with which the one before ended, and what no query of a store filters by is looked for
in the rollouts themselves, for a bounded time: a page may end before it is full, and its cursor goes on. Groups are
indexed once. Rewards are read of many rollouts at once, of those that pass all else, and remembered once nothing about
a rollout changes any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from bisect import bisect_left
from collections import OrderedDict, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast

from ....emitter import find_final_reward
from ....store import LightningStore, LightningStoreStatistics, body_json
from ....types import Attempt, AttemptedRollout, ResourcesUpdate, Rollout, RolloutStatus, Span, Worker
from .base import (
    GROUP_KEY,
    MAX_GROUP,
    MAX_RESOURCES,
    MAX_SPANS,
    GroupRow,
    RolloutFilter,
    RolloutPage,
    RolloutRow,
    preview_of,
    reason_of,
    rl_step,
    spellings,
)

# Lines of rollouts made of the objects of a store, and the tests of a filter on them.


def texts_of(rollout: Rollout) -> Iterator[str]:
    """Yield the texts in which one is looked for, but those of spans: the id, the task, the metadata."""
    yield rollout.rollout_id
    yield json_text(rollout.input)
    yield json_text(rollout.metadata)
    if isinstance(rollout, AttemptedRollout):
        yield json_text(rollout.attempt.metadata)


def row_of(rollout: Rollout) -> RolloutRow:
    """Return the line of a rollout, without its reward."""
    attempt = rollout.attempt if isinstance(rollout, AttemptedRollout) else None
    metadata = rollout.metadata or {}
    step, group, evaluation = (metadata.get(name) for name in ("step", GROUP_KEY, "evaluation"))
    return RolloutRow(
        number=None,
        id=rollout.rollout_id,
        status=rollout.status,
        mode=rollout.mode,
        start=rollout.start_time,
        end=rollout.end_time,
        task=preview_of(rollout.input),
        attempts=0 if attempt is None else attempt.sequence_id,
        worker=None if attempt is None else attempt.worker_id,
        reward=None,
        group=None if group is None else str(group),
        step=rl_step(step),
        evaluation=None if evaluation is None else str(evaluation),
        why=reason_of(metadata, None if attempt is None else attempt.metadata),
    )


def may_pass(rollout: Rollout, row: RolloutRow, wanted: RolloutFilter) -> bool:
    """Return whether a rollout passes all but what its spans tell."""
    return (
        (not wanted.mode or row["mode"] == wanted.mode)
        and (not wanted.worker or wanted.worker in (row["worker"] or ""))
        and (not wanted.group or wanted.group == row["group"])
        and (wanted.step is None or wanted.step == row["step"])
        and (not wanted.task or stands_in(wanted.task, (json_text(rollout.input),)))
    )


def is_wanted_reward(reward: float | None, wanted: RolloutFilter) -> bool:
    """Return True if there is a reward, within the bounds of a filter."""
    if reward is None:
        return False
    return (wanted.reward_min is None or reward >= wanted.reward_min) and (
        wanted.reward_max is None or reward <= wanted.reward_max
    )


def stands_in(text: str, texts: Iterable[str]) -> bool:
    """Return True if a text stands in one of these, in either spelling that JSON has for it."""
    wanted = spellings(text)
    return any(one in each for each in texts for one in wanted)


def json_text(value: Any) -> str:
    """Return a task or metadata as databases keep them."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)


def span_text(span: Span) -> str:
    """Return what a text is looked for in of a span."""
    try:
        return body_json(span)
    except ValueError:  # a store in memory takes what is no JSON
        return str(span.attributes)


# Rewards of rollouts, read of many at once and remembered of those that have ended.


_REWARDS_AT_ONCE: Final = 200
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
        parts = [asked[start : start + _REWARDS_AT_ONCE] for start in range(0, len(asked), _REWARDS_AT_ONCE)]
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


# Groups of a store that no query asks for by group: each rollout is read once, the oldest first, and then what comes.
#
# Reading goes on in a task of the event loop, which rests as long as it has worked, so that pages are answered
# meanwhile.


_ROLLOUTS_AT_ONCE: Final = 250
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
                found = await self._store.walk_rollouts(self._last[-1] if self._last else None, limit=_ROLLOUTS_AT_ONCE)
            except ValueError:
                if not self._last:
                    raise
                self._go_back()
                continue
            for rollout in found:
                self._add(rollout)
            if len(found) < _ROLLOUTS_AT_ONCE:
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


_SECONDS: Final = 0.025
"""Time after which a page ends with what it has found."""
_PATIENCE_SECONDS: Final = 60.0
"""Time for which one group is looked for in a store that is being indexed."""
_LOOK_SECONDS: Final = 0.2
_LOOKED_AT: Final = 100
_AT_ONCE: Final = 8
"""Rollouts whose spans are asked for at a time, where the store is a server."""
_SEARCHED_AT_ONCE: Final = 4
_GROUPS_AT_ONCE: Final = 1000
"""Rollouts of groups that are read at once, about."""
_GROUPS_SECONDS: Final = 0.1
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
        after, end = cursor, time.monotonic() + _GROUPS_SECONDS
        for part in _in_parts(shown):
            if lines and time.monotonic() > end:
                return lines, after
            lines += await self._lines_of(part)
            after = str(part[-1].number)
        return lines, after if len(shown) == limit else None

    async def group(self, group: str) -> Sequence[str]:
        end = time.monotonic() + _PATIENCE_SECONDS
        while self._groups.group(group) is None and time.monotonic() < end:
            if await self._groups.follow(_LOOK_SECONDS):
                break
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
        """Return the lines of groups, but of those whose rollouts were deleted. Of a group about which nothing changes
        any more one rollout is read, for its task, and with that whether it is there still."""
        groups = [group for group in groups if group.ids]
        read = [one for group in groups for one in dict.fromkeys([group.ids[0], *group.unsettled])]
        there = {one.rollout_id: one for one in await self.store.query_rollouts(rollout_id_in=read)} if read else {}
        missed = [group for group in groups if any(one not in there for one in (group.ids[0], *group.unsettled))]
        if missed:  # rollouts were deleted, or have come since
            again = [one for group in missed for one in group.ids]
            there |= {one.rollout_id: one for one in await self.store.query_rollouts(rollout_id_in=again)}
            for group in missed:
                group.forget(set(again) - set(there))
        for group in groups:
            group.settle(one for one in group.unsettled if one in there and is_settled(there[one]))
        shown = [(group, list(group.ids)) for group in groups if group.ids and group.ids[0] in there]
        unsettled = {one for group in groups for one in group.unsettled}
        ids = [one for _, each in shown for one in each]
        rewards = await self._rewards.of_ids(ids, [one for one in ids if one not in unsettled])
        return [
            GroupRow(
                group=group.name,
                step=group.step,
                count=len(each),
                rewards=[rewards[one] for one in each],
                task=preview_of(there[each[0]].input),
            )
            for group, each in shown
        ]

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
        for start in range(0, len(places), _SEARCHED_AT_ONCE):
            part = places[start : start + _SEARCHED_AT_ONCE]
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


def _in_parts(groups: Sequence[IndexedGroup]) -> Iterator[list[IndexedGroup]]:
    """Yield groups in parts of which no more is read at once than a part of their rollouts."""
    part: list[IndexedGroup] = []
    size = 0
    for group in groups:
        part.append(group)
        size += len(group.ids)
        if size >= _GROUPS_AT_ONCE:
            yield part
            part, size = [], 0
    if part:
        yield part


def _whole_number(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 19:
        raise ValueError(f"cursor {text[:40]!r}: expected that of an earlier page")
    return int(text)
