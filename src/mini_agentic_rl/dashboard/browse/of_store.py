"""Any store, read through the queries that every store has: a store server's, one in memory, PostgreSQL, MongoDB.

Pages are counted from the newest rollout (offset paging), and what no query of a store filters by is looked for in the
rollouts themselves, for a bounded time: a page may end before it is full, and its cursor goes on. Rewards are read from
the spans of rollouts that pass all else, and remembered of those that have ended.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, cast

from ...emitter import find_final_reward
from ...store import LightningStore
from ...types import Attempt, AttemptedRollout, ResourcesUpdate, Rollout, RolloutStatus, Span, Worker
from .base import (
    GROUP_KEY,
    MAX_GROUP,
    MAX_RESOURCES,
    MAX_SPANS,
    GroupRow,
    RolloutFilter,
    RolloutPage,
    RolloutRow,
    reason_of,
    rl_step,
    task_preview,
)

_SECONDS: Final = 0.025
"""Time after which a page ends with what it has found."""
_LOOKED_AT: Final = 100
_GROUP_SCAN: Final = 500
_AT_ONCE: Final = 8
"""Rollouts whose spans are asked for at a time, where the store is a server."""
_KEPT: Final = 200_000
"""Rewards and places of groups that are remembered."""
_SETTLED_SECONDS: Final = 10.0
"""Time after the end of a rollout in which spans of it may still come."""


class StoreBrowser:
    """Reads of an open store.

    Args:
        store: read from the event loop that serves the dashboard; it may be called from there.
        owned: close the store with the browser.
    """

    def __init__(self, store: LightningStore, *, owned: bool = False) -> None:
        self.store = store
        self._owned = owned
        self._rewards: OrderedDict[tuple[str, float], float | None] = OrderedDict()
        self._places: OrderedDict[str, int] = OrderedDict()
        self._turns = asyncio.Semaphore(_AT_ONCE)

    async def totals(self) -> Mapping[str, Any]:
        counts = await self.store.statistics()
        rollouts, spans = counts.get("total_rollouts", 0), counts.get("total_spans", 0)
        return {"status": {}, "rollouts": rollouts, "spans": spans, "indexed": spans}

    async def page(self, wanted: RolloutFilter, cursor: str | None, limit: int) -> RolloutPage:
        at, end = _offset(cursor), time.monotonic() + _SECONDS
        items: list[RolloutRow] = []
        status = cast("list[RolloutStatus]", list(wanted.status)) or None
        plain = wanted == RolloutFilter(status=wanted.status)
        while True:
            looked_at = limit - len(items) if plain else _LOOKED_AT
            found = await self.store.query_rollouts(status_in=status, sort_order="desc", limit=looked_at, offset=at)
            if status is None:
                self._note_places(found, found.total - at - 1)
            for row in await self._passing(found, found.total - at - 1, wanted):
                at += 1
                if row is not None:
                    items.append(row)
                if len(items) == limit:
                    return RolloutPage(items, str(at) if at < found.total else None)
            if at >= found.total or not len(found):
                return RolloutPage(items, None)
            if time.monotonic() > end:
                return RolloutPage(items, str(at))

    async def rows(self, ids: Sequence[str]) -> Sequence[RolloutRow]:
        found = await self.store.query_rollouts(rollout_id_in=list(ids))
        rewards = await self._rewards_of(found)
        return [_row(one, number, reward) for number, (one, reward) in enumerate(zip(found, rewards, strict=True))]

    async def rollout(self, rollout_id: str) -> Rollout | None:
        return await self.store.get_rollout_by_id(rollout_id)

    async def attempts(self, rollout_id: str) -> Sequence[Attempt]:
        return list(await self.store.query_attempts(rollout_id))

    async def spans(self, rollout_id: str) -> Sequence[Span]:
        return list(await self.store.query_spans(rollout_id, limit=MAX_SPANS))

    async def groups(self, cursor: str | None, limit: int) -> tuple[Sequence[GroupRow], str | None]:
        """Return the groups among the rollouts of some pages; a group that two pages share comes with both."""
        at = _offset(cursor)
        found = await self.store.query_rollouts(sort_order="desc", limit=_GROUP_SCAN, offset=at)
        groups: dict[str, list[Rollout]] = {}
        used = 0
        self._note_places(found, found.total - at - 1)
        for rollout in found:
            name = (rollout.metadata or {}).get(GROUP_KEY)
            if name is not None and name not in groups and len(groups) == limit:
                break
            used += 1
            if name is not None:
                groups.setdefault(str(name), []).append(rollout)
        rows = []
        shown = [member for members in groups.values() for member in reversed(members)]
        known = iter(await self._rewards_of(shown))
        for name, members in groups.items():
            rewards = [next(known) for _ in members]
            step = rl_step(members[0].metadata.get("step"))
            task = task_preview(json.dumps(members[0].input, default=str))
            rows.append(GroupRow(group=name, step=step, count=len(members), rewards=rewards, task=task))
        return rows, str(at + used) if at + used < found.total else None

    async def group(self, group: str) -> Sequence[str]:
        place = self._places.get(group)
        at = 0
        if place is not None:  # it was shown before, so many rollouts after the first one
            at = max(0, (await self.store.query_rollouts(limit=0)).total - 1 - place - MAX_GROUP)
        ids = await self._members(group, at)
        return ids if ids or at == 0 else await self._members(group, 0)

    async def _members(self, group: str, at: int) -> list[str]:
        """Return the ids of a group's rollouts, looked for from so many rollouts before the newest one on."""
        ids: list[str] = []
        while True:
            found = await self.store.query_rollouts(sort_order="desc", limit=_GROUP_SCAN, offset=at)
            here = [one.rollout_id for one in found if str((one.metadata or {}).get(GROUP_KEY)) == group]
            ids += here
            at += len(found)
            if at >= found.total or not len(found) or (ids and not here) or len(ids) >= MAX_GROUP:
                return ids[:MAX_GROUP][::-1]

    async def workers(self) -> Sequence[Worker]:
        return list(await self.store.query_workers(sort_by="worker_id"))

    async def resources(self) -> Sequence[ResourcesUpdate]:
        return list(await self.store.query_resources(sort_order="desc", limit=MAX_RESOURCES))

    async def mark(self) -> str:
        counts = dict(await self.store.statistics())
        newest = await self.store.query_rollouts(sort_order="desc", limit=1)
        counts.pop("uptime", None)
        return json.dumps([counts, *(f"{one.rollout_id} {one.status}" for one in newest)], default=str)

    async def close(self) -> None:
        if self._owned:
            await self.store.close()

    async def _passing(
        self, rollouts: Iterable[Rollout], newest: int, wanted: RolloutFilter
    ) -> list[RolloutRow | None]:
        """Return the row of each rollout, None for one that does not pass; the first has the number `newest`."""
        rows = [_row(rollout, newest - index, None) for index, rollout in enumerate(rollouts)]
        asked = [(one, row) for one, row in zip(rollouts, rows, strict=True) if _may_pass(one, row, wanted)]
        for (_, row), reward in zip(asked, await self._rewards_of(one for one, _ in asked), strict=True):
            row["reward"] = reward
        passes = {one.rollout_id for one, row in asked if await self._passes(one, row, wanted)}
        return [row if row["id"] in passes else None for row in rows]

    async def _passes(self, rollout: Rollout, row: RolloutRow, wanted: RolloutFilter) -> bool:
        reward = row["reward"]
        if wanted.reward_min is not None and (reward is None or reward < wanted.reward_min):
            return False
        if wanted.reward_max is not None and (reward is None or reward > wanted.reward_max):
            return False
        if not wanted.text:
            return True
        metadata = json.dumps(rollout.metadata, ensure_ascii=False, default=str)
        if any(wanted.text in text for text in (row["id"], _task(rollout), metadata, row["why"] or "")):
            return True
        spans = await self.store.query_spans(rollout.rollout_id)
        return any(wanted.text in str(value) for span in spans for value in span.attributes.values())

    async def _rewards_of(self, rollouts: Iterable[Rollout]) -> Sequence[float | None]:
        return await asyncio.gather(*map(self._reward, rollouts))

    async def _reward(self, rollout: Rollout) -> float | None:
        if rollout.status != "succeeded":
            return None
        key = (rollout.rollout_id, rollout.end_time or 0.0)  # one that is run again ends at another time
        if key in self._rewards:
            return self._rewards[key]
        async with self._turns:
            reward = find_final_reward(list(await self.store.query_spans(rollout.rollout_id, "latest")))
        if rollout.end_time is not None and time.time() > rollout.end_time + _SETTLED_SECONDS:
            _keep(self._rewards, key, reward)
        return reward

    def _note_places(self, rollouts: Iterable[Rollout], newest: int) -> None:
        """Remember where the groups of some rollouts lie, as a number from the first rollout of the store on."""
        for index, rollout in enumerate(rollouts):
            group = (rollout.metadata or {}).get(GROUP_KEY)
            if group is not None:
                _keep(self._places, str(group), max(newest - index, self._places.get(str(group), 0)))


def _keep(kept: OrderedDict[Any, Any], key: Any, value: Any) -> None:
    kept[key] = value
    if len(kept) > _KEPT:
        kept.popitem(last=False)


def _row(rollout: Rollout, number: int, reward: float | None) -> RolloutRow:
    attempt = rollout.attempt if isinstance(rollout, AttemptedRollout) else None
    metadata = rollout.metadata or {}
    step, group, evaluation = (metadata.get(name) for name in ("step", GROUP_KEY, "evaluation"))
    return RolloutRow(
        number=number,
        id=rollout.rollout_id,
        status=rollout.status,
        mode=rollout.mode,
        start=rollout.start_time,
        end=rollout.end_time,
        task=task_preview(_task(rollout)),
        attempts=0 if attempt is None else attempt.sequence_id,
        worker=None if attempt is None else attempt.worker_id,
        reward=reward,
        group=None if group is None else str(group),
        step=rl_step(step),
        evaluation=None if evaluation is None else str(evaluation),
        why=reason_of(metadata, None if attempt is None else attempt.metadata),
    )


def _may_pass(rollout: Rollout, row: RolloutRow, wanted: RolloutFilter) -> bool:
    """Return whether a rollout passes all but what its spans tell."""
    return (
        (not wanted.mode or row["mode"] == wanted.mode)
        and (not wanted.worker or wanted.worker in (row["worker"] or ""))
        and (not wanted.group or wanted.group == row["group"])
        and (wanted.step is None or wanted.step == row["step"])
        and (not wanted.task or wanted.task in _task(rollout))
    )


def _task(rollout: Rollout) -> str:
    return json.dumps(rollout.input, ensure_ascii=False, default=str)


def _offset(cursor: str | None) -> int:
    if cursor is None:
        return 0
    if not cursor.isascii() or not cursor.isdigit() or len(cursor) > 19:
        raise ValueError(f"cursor {cursor[:40]!r}: expected that of an earlier page")
    return int(cursor)
