"""Any store, read through the queries that every store has: a store server's, one in memory, PostgreSQL, MongoDB.

Pages are counted from the newest rollout (offset paging), and what no query of a store filters by is looked for in the
rollouts of a page, a bounded number at a time. Rewards are read from the spans of the rollouts that are shown.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
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

_SECONDS: Final = 0.1
_LOOKED_AT: Final = 200
_GROUP_SCAN: Final = 2000


class StoreBrowser:
    """Reads of an open store.

    Args:
        store: read from the event loop that serves the dashboard; it may be called from there.
        owned: close the store with the browser.
    """

    def __init__(self, store: LightningStore, *, owned: bool = False) -> None:
        self.store = store
        self._owned = owned

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
            for index, rollout in enumerate(found, 1):
                row = await self._row(rollout, number=found.total - at - index)
                if plain or await self._passes(rollout, row, wanted):
                    items.append(row)
                if len(items) == limit:
                    at += index
                    return RolloutPage(items, str(at) if at < found.total else None)
            at += len(found)
            if at >= found.total or not len(found):
                return RolloutPage(items, None)
            if time.monotonic() > end:
                return RolloutPage(items, str(at))

    async def rows(self, ids: Sequence[str]) -> Sequence[RolloutRow]:
        found = await self.store.query_rollouts(rollout_id_in=list(ids))
        return [await self._row(rollout, number) for number, rollout in enumerate(found)]

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
        for rollout in found:
            name = (rollout.metadata or {}).get(GROUP_KEY)
            if name is not None and name not in groups and len(groups) == limit:
                break
            used += 1
            if name is not None:
                groups.setdefault(str(name), []).append(rollout)
        rows = []
        for name, members in groups.items():
            rewards = [(await self._row(member, 0))["reward"] for member in reversed(members)]
            step = rl_step(members[0].metadata.get("step"))
            task = task_preview(json.dumps(members[0].input, default=str))
            rows.append(GroupRow(group=name, step=step, count=len(members), rewards=rewards, task=task))
        return rows, str(at + used) if at + used < found.total else None

    async def group(self, group: str) -> Sequence[str]:
        at = 0
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

    async def _row(self, rollout: Rollout, number: int) -> RolloutRow:
        attempt = rollout.attempt if isinstance(rollout, AttemptedRollout) else None
        metadata = rollout.metadata or {}
        reward = None
        if rollout.status == "succeeded":
            reward = find_final_reward(list(await self.store.query_spans(rollout.rollout_id, "latest")))
        step, group, evaluation = (metadata.get(name) for name in ("step", GROUP_KEY, "evaluation"))
        return RolloutRow(
            number=number,
            id=rollout.rollout_id,
            status=rollout.status,
            mode=rollout.mode,
            start=rollout.start_time,
            end=rollout.end_time,
            task=task_preview(json.dumps(rollout.input, ensure_ascii=False, default=str)),
            attempts=0 if attempt is None else attempt.sequence_id,
            worker=None if attempt is None else attempt.worker_id,
            reward=reward,
            group=None if group is None else str(group),
            step=rl_step(step),
            evaluation=None if evaluation is None else str(evaluation),
            why=reason_of(metadata, None if attempt is None else attempt.metadata),
        )

    async def _passes(self, rollout: Rollout, row: RolloutRow, wanted: RolloutFilter) -> bool:
        reward = row["reward"]
        task = json.dumps(rollout.input, ensure_ascii=False, default=str)
        checks = (
            not wanted.mode or row["mode"] == wanted.mode,
            wanted.reward_min is None or (reward is not None and reward >= wanted.reward_min),
            wanted.reward_max is None or (reward is not None and reward <= wanted.reward_max),
            not wanted.worker or wanted.worker in (row["worker"] or ""),
            not wanted.task or wanted.task in task,
            not wanted.group or wanted.group == row["group"],
            wanted.step is None or wanted.step == row["step"],
        )
        if not all(checks) or not wanted.text:
            return all(checks)
        metadata = json.dumps(rollout.metadata, ensure_ascii=False, default=str)
        if any(wanted.text in text for text in (row["id"], task, metadata, row["why"] or "")):
            return True
        spans = await self.store.query_spans(rollout.rollout_id)
        return any(wanted.text in str(value) for span in spans for value in span.attributes.values())


def _offset(cursor: str | None) -> int:
    if cursor is None:
        return 0
    if not cursor.isascii() or not cursor.isdigit() or len(cursor) > 19:
        raise ValueError(f"cursor {cursor[:40]!r}: expected that of an earlier page")
    return int(cursor)
