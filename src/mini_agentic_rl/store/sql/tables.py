"""Tables in SQL: every method is one or two statements in the running transaction."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Sequence
from functools import partial
from typing import Any, Final, cast

from ...types import TERMINAL_ROLLOUT_STATUSES, Attempt, PaginatedResult, ResourcesUpdate, Rollout, Span, Worker
from .. import lifecycle
from ..base import LightningStoreStatistics
from ..listing import GroupPage, RolloutFilter, RolloutGroup, RolloutPage
from ..tables import MOST_OUTCOMES, Kind, Query, Row, columns_of, content_changed, object_of, readable
from .schema import COLUMNS
from .session import Session
from .statements import (
    ROLLOUTS_WITH_LATEST,
    examined_of,
    groups_of,
    item_of,
    listing_of,
    numbers_of,
    page_of,
    rollout_and_latest,
    rows_of,
    total_of,
)

_FORGOTTEN_AT_ONCE: Final = 256


def _insert(table: str, *, replaced_by: str | None = None) -> str:
    """Return the statement that inserts a row, or replaces all but the number of the row with the same key."""
    names = COLUMNS[table]
    statement = f"INSERT INTO {table} ({', '.join(names)}) VALUES ({', '.join(f':{name}' for name in names)})"
    if replaced_by is None:
        return statement
    new = ", ".join(f"{name} = excluded.{name}" for name in names if name != replaced_by)
    return f"{statement} ON CONFLICT ({replaced_by}) DO UPDATE SET {new}"


_ROLLOUT: Final = "rollout_id = :rollout_id"
_ATTEMPT: Final = "rollout_id = :rollout_id AND attempt_id = :attempt_id"

_ONE_ROLLOUT: Final = f"{ROLLOUTS_WITH_LATEST} WHERE agl_rollouts.rollout_id = :rollout_id"
_SOME_ROLLOUTS: Final = f"{ROLLOUTS_WITH_LATEST} WHERE agl_rollouts.rollout_id IN (SELECT value FROM json_each(:ids))"
_SOME_STATUSES: Final = (
    "SELECT rollout_id, status FROM agl_rollouts WHERE rollout_id IN (SELECT value FROM json_each(:ids))"
)
_CLAIMED_CHARACTERS: Final = 16 * 1024 * 1024
"""Rollouts of one claim, whose tasks are read and answered together: a task may have 32 MiB."""
_QUEUED: Final = (
    f"{ROLLOUTS_WITH_LATEST} WHERE agl_rollouts.queue_position IN (SELECT queue_position FROM (SELECT queue_position, "
    "sum(length(input_json) + length(metadata_json)) OVER (ORDER BY queue_position) AS characters, "
    "row_number() OVER (ORDER BY queue_position) AS place "
    "FROM (SELECT queue_position, input_json, metadata_json FROM agl_rollouts WHERE queue_position IS NOT NULL "
    "ORDER BY queue_position LIMIT :count) AS first) AS sized "
    f"WHERE place = 1 OR characters <= {_CLAIMED_CHARACTERS}) ORDER BY agl_rollouts.queue_position"
)
_HAS_QUEUED: Final = "SELECT number FROM agl_rollouts WHERE queue_position IS NOT NULL LIMIT 1"
_LAST_QUEUED: Final = "SELECT max(queue_position) FROM agl_rollouts WHERE queue_position IS NOT NULL"
_INSERT_ROLLOUT: Final = _insert("agl_rollouts")
_EDIT_ROLLOUT: Final = (
    "UPDATE agl_rollouts SET mode = :mode, resources_id = :resources_id, input_json = :input_json, "
    "config_json = :config_json, metadata_json = :metadata_json, step = :step, group_id = :group_id "
    f"WHERE {_ROLLOUT}"
)
_MOVE_ROLLOUT: Final = (
    f"UPDATE agl_rollouts SET status = :status, end_time = :end_time, queue_position = :queue_position WHERE {_ROLLOUT}"
)
_MOVE_QUEUED_ROLLOUT: Final = f"UPDATE agl_rollouts SET status = :status WHERE {_ROLLOUT}"
_COUNT_ATTEMPT: Final = f"UPDATE agl_rollouts SET attempts = :attempts, reward = NULL WHERE {_ROLLOUT}"
_SET_REWARD: Final = (
    "UPDATE agl_rollouts SET reward = ("
    f"SELECT reward FROM agl_spans WHERE {_ATTEMPT} AND reward IS NOT NULL "
    "ORDER BY sequence_id DESC, number DESC LIMIT 1) "
    f"WHERE {_ROLLOUT} AND attempts = (SELECT sequence_id FROM agl_attempts WHERE {_ATTEMPT})"
)
_DELETE_SOME_SPANS: Final = (
    f"DELETE FROM agl_spans WHERE number IN (SELECT number FROM agl_spans WHERE {_ROLLOUT} LIMIT :count)"
)
_ONE_ATTEMPT: Final = f"SELECT * FROM agl_attempts WHERE {_ATTEMPT}"
_INSERT_ATTEMPT: Final = _insert("agl_attempts")
_EDIT_ATTEMPT: Final = (
    "UPDATE agl_attempts SET status = :status, end_time = :end_time, worker_id = :worker_id, "
    "last_heartbeat_time = :last_heartbeat_time, metadata_json = :metadata_json, deadline = :deadline "
    f"WHERE {_ATTEMPT}"
)
_OVERDUE: Final = (
    "SELECT rollout_id, attempt_id FROM agl_attempts WHERE deadline IS NOT NULL AND deadline <= :now LIMIT :count"
)
_NEXT_DEADLINE: Final = "SELECT min(deadline) FROM agl_attempts WHERE deadline IS NOT NULL"
_REACHED_NUMBER: Final = f"SELECT max(last_span_number) FROM agl_attempts WHERE {_ROLLOUT}"
_TAKE_NUMBERS: Final = (
    f"UPDATE agl_attempts SET last_span_number = last_span_number + :count WHERE {_ATTEMPT} RETURNING last_span_number"
)
_RAISE_NUMBER: Final = (
    f"UPDATE agl_attempts SET last_span_number = :reached WHERE {_ATTEMPT} AND last_span_number < :reached"
)
_KNOWN_SPANS: Final = (
    f"SELECT span_id FROM agl_spans WHERE {_ATTEMPT} AND span_id IN (SELECT value FROM json_each(:ids))"
)
_INSERT_SPAN: Final = f"{_insert('agl_spans')} ON CONFLICT (rollout_id, attempt_id, span_id) DO NOTHING"
_ONE_RESOURCES: Final = "SELECT * FROM agl_resources WHERE resources_id = :resources_id"
_LATEST_RESOURCES: Final = "SELECT * FROM agl_resources ORDER BY write_number DESC LIMIT 1"
_LAST_RESOURCES: Final = "SELECT max(write_number) FROM agl_resources"
_WRITE_RESOURCES: Final = _insert("agl_resources", replaced_by="resources_id")
_ONE_WORKER: Final = "SELECT * FROM agl_workers WHERE worker_id = :worker_id"
_WRITE_WORKER: Final = _insert("agl_workers", replaced_by="worker_id")
_OUTCOME: Final = "SELECT outcome_json FROM agl_outcomes WHERE key = :key"
_KEEP_OUTCOME: Final = _insert("agl_outcomes", replaced_by="key")
_LAST_OUTCOME: Final = "SELECT max(number) FROM agl_outcomes"
_FORGET_OUTCOMES: Final = "DELETE FROM agl_outcomes WHERE number <= :last"
_COUNTED: Final = ("rollouts", "attempts", "spans", "resources", "workers")
_COUNTS: Final = f"SELECT {', '.join(f'(SELECT count(*) FROM agl_{name}) AS total_{name}' for name in _COUNTED)}"
_COUNTS_BY_STATUS: Final = "SELECT status, count(*) AS count FROM agl_rollouts GROUP BY status"


class SqlTables:
    """Tables of `SqlLightningStore`, in one transaction."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._last_numbers: dict[str, int] = {}

    def rollout(self, rollout_id: str) -> tuple[Rollout, Attempt | None] | None:
        row = self._session.row(_ONE_ROLLOUT, {"rollout_id": rollout_id})
        if row is None:
            return None
        if row["attempt_attempt_id"] is not None:
            self._last_numbers[row["attempt_attempt_id"]] = row["attempt_last_span_number"]
        return rollout_and_latest(row)

    def queued(self, limit: int) -> Sequence[tuple[Rollout, Attempt | None]]:
        def give_up(damaged: Row) -> None:
            """Remove a damaged rollout from the queue."""
            move = {"status": "failed", "end_time": time.time(), "queue_position": None}
            self._session.run(_MOVE_ROLLOUT, {"rollout_id": damaged["rollout_id"]} | move)

        while True:
            rows = self._session.rows(_QUEUED, {"count": limit})
            rollouts = readable(rollout_and_latest, rows, give_up)
            if len(rollouts) == len(rows):
                return rollouts

    def has_queued(self) -> bool:
        return self._session.scalar(_HAS_QUEUED) is not None

    def insert_rollouts(self, rollouts: Sequence[Rollout]) -> None:
        if not rollouts:
            return
        end = (self._session.scalar(_LAST_QUEUED) or 0) + 1
        rows = []
        for index, rollout in enumerate(rollouts):
            queued = rollout.status in lifecycle.QUEUED_STATUSES
            position = end + index if queued else None
            rows.append(columns_of("rollout", rollout) | {"attempts": 0, "reward": None, "queue_position": position})
        self._session.run_many(_INSERT_ROLLOUT, rows)

    def replace_rollout(self, old: Rollout, new: Rollout) -> None:
        if new.status != old.status:
            move: dict[str, Any] = {"status": new.status, "end_time": new.end_time, "queue_position": None}
            queued = new.status in lifecycle.QUEUED_STATUSES
            keeps_place = queued and old.status in lifecycle.QUEUED_STATUSES
            if queued and not keeps_place:
                move["queue_position"] = (self._session.scalar(_LAST_QUEUED) or 0) + 1
            statement = _MOVE_QUEUED_ROLLOUT if keeps_place else _MOVE_ROLLOUT
            self._session.run(statement, {"rollout_id": new.rollout_id} | move)
        if content_changed(old, new):
            self._session.run(_EDIT_ROLLOUT, columns_of("rollout", new))

    def delete_spans(self, rollout_id: str, limit: int) -> int:
        return self._session.run(_DELETE_SOME_SPANS, {"rollout_id": rollout_id, "count": limit})

    def delete_rollout(self, rollout_id: str) -> None:
        for table in ("agl_spans", "agl_attempts", "agl_rollouts"):
            self._session.run(f"DELETE FROM {table} WHERE {_ROLLOUT}", {"rollout_id": rollout_id})

    def attempt(self, rollout_id: str, attempt_id: str) -> Attempt | None:
        ids = {"rollout_id": rollout_id, "attempt_id": attempt_id}
        row = self._session.row(_ONE_ATTEMPT, ids)
        return None if row is None else object_of("attempt", row)

    def insert_attempt(self, attempt: Attempt, deadline: float | None) -> None:
        reached = 0
        if attempt.sequence_id > 1:
            reached = self._session.scalar(_REACHED_NUMBER, {"rollout_id": attempt.rollout_id}) or 0
        extra = {"last_span_number": reached, "deadline": deadline}
        self._session.run(_INSERT_ATTEMPT, columns_of("attempt", attempt) | extra)
        self._session.run(_COUNT_ATTEMPT, {"rollout_id": attempt.rollout_id, "attempts": attempt.sequence_id})

    def replace_attempt(self, attempt: Attempt, deadline: float | None) -> None:
        self._session.run(_EDIT_ATTEMPT, columns_of("attempt", attempt) | {"deadline": deadline})

    def overdue(self, now: float, limit: int) -> Sequence[tuple[str, str]]:
        rows = self._session.rows(_OVERDUE, {"now": now, "count": limit})
        return [(row["rollout_id"], row["attempt_id"]) for row in rows]

    def next_deadline(self) -> float | None:
        deadline: float | None = self._session.scalar(_NEXT_DEADLINE)
        return deadline

    def take_span_numbers(self, rollout_id: str, attempt_id: str, count: int) -> int | None:
        ids = {"rollout_id": rollout_id, "attempt_id": attempt_id, "count": count}
        last: int | None = self._session.scalar(_TAKE_NUMBERS, ids)
        if last is None:
            return None
        self._last_numbers[attempt_id] = last
        return last - count + 1

    def insert_spans(self, rollout_id: str, attempt_id: str, spans: Sequence[Span]) -> Sequence[Span]:
        ids: dict[str, Any] = {"rollout_id": rollout_id, "attempt_id": attempt_id}
        if len(spans) == 1:
            rows = [columns_of("span", spans[0])]
            new = list(spans) if self._session.run(_INSERT_SPAN, rows[0]) else []
        else:
            first_of: dict[str, Span] = {}
            for span in spans:
                first_of.setdefault(span.span_id, span)
            stored = self._session.rows(_KNOWN_SPANS, ids | {"ids": json.dumps(list(first_of))})
            known = {row["span_id"] for row in stored}
            new = [span for span_id, span in first_of.items() if span_id not in known]
            rows = [columns_of("span", span) for span in new]
            self._session.run_many(_INSERT_SPAN, rows)
        reached = max((span.sequence_id for span in new), default=-1)
        if reached > self._last_numbers.get(attempt_id, -1):
            self._session.run(_RAISE_NUMBER, ids | {"reached": reached})
            self._last_numbers[attempt_id] = reached
        if any(row["reward"] is not None for row in rows):
            self._session.run(_SET_REWARD, ids)
        return new

    def latest_resources(self) -> ResourcesUpdate | None:
        row = self._session.row(_LATEST_RESOURCES)
        return None if row is None else object_of("resources", row)

    def resources(self, resources_id: str) -> ResourcesUpdate | None:
        row = self._session.row(_ONE_RESOURCES, {"resources_id": resources_id})
        return None if row is None else object_of("resources", row)

    def write_resources(self, update: ResourcesUpdate) -> None:
        last = self._session.scalar(_LAST_RESOURCES) or 0
        self._session.run(_WRITE_RESOURCES, columns_of("resources", update) | {"write_number": last + 1})

    def worker(self, worker_id: str) -> Worker | None:
        row = self._session.row(_ONE_WORKER, {"worker_id": worker_id})
        return None if row is None else object_of("worker", row)

    def write_worker(self, worker: Worker) -> None:
        self._session.run(_WRITE_WORKER, columns_of("worker", worker))

    def select(self, query: Query) -> PaginatedResult[Any]:
        rows = self._session.rows(*page_of(query))
        return self._page(query, readable(partial(item_of, query.kind), rows))

    def handles(self, query: Query) -> PaginatedResult[Any]:
        return self._page(query, [row["number"] for row in self._session.rows(*numbers_of(query))])

    def items(self, kind: Kind, handles: Sequence[Any]) -> list[Any]:
        rows = {row["number"]: row for row in self._session.rows(*rows_of(kind, list(handles)))}
        return readable(partial(item_of, kind), (rows[number] for number in handles if number in rows))

    def _page(self, query: Query, items: list[Any]) -> PaginatedResult[Any]:
        whole = query.limit == -1 and query.offset == 0
        total = len(items) if whole else self._session.scalar(*total_of(query))
        return PaginatedResult.model_construct(items=items, limit=query.limit, offset=query.offset, total=total)

    def list_rollouts(self, wanted: RolloutFilter, before: int | None, limit: int) -> RolloutPage:
        rows = self._session.rows(*listing_of(wanted, before, limit))
        items = readable(lambda row: (item_of("rollout", row), row["reward"]), rows)
        position = rows[-1]["number"] if rows else None
        if len(rows) < limit:
            numbers, values = examined_of(wanted, before, limit)
            extent_of = f"SELECT min(number) AS last, count(*) AS count FROM ({numbers}) AS examined"
            (extent,) = self._session.rows(extent_of, values)
            position = extent["last"] if extent["count"] == wanted.max_examined(limit) else None
        return RolloutPage.model_construct(
            items=[item for item, _ in items], rewards=[reward for _, reward in items], next=position
        )

    def list_groups(self, before: int | None, limit: int) -> GroupPage:
        groups: dict[str, RolloutGroup] = {}
        position = None
        for row in self._session.rows(*groups_of(before, limit)):
            position = row["first"]
            group = groups.get(row["group_id"])
            if group is None:
                group = RolloutGroup.model_construct(group=row["group_id"], step=row["step"], rewards=[], input=None)
                with contextlib.suppress(ValueError):  # a damaged row
                    group.input = json.loads(row["input_json"])
                groups[row["group_id"]] = group
            group.rewards.append(row["reward"])
        return GroupPage.model_construct(items=list(groups.values()), next=position if len(groups) == limit else None)

    def ended(self, rollout_ids: Sequence[str]) -> tuple[Sequence[Rollout], Sequence[str]]:
        rows = self._session.rows(_SOME_STATUSES, {"ids": json.dumps(list(rollout_ids))})
        status_of = {row["rollout_id"]: row["status"] for row in rows}
        done = [i for i in rollout_ids if status_of.get(i) in TERMINAL_ROLLOUT_STATUSES]
        rows = self._session.rows(_SOME_ROLLOUTS, {"ids": json.dumps(done)}) if done else []
        rollouts: dict[str, Rollout] = {
            rollout.rollout_id: rollout for rollout in readable(partial(item_of, "rollout"), rows)
        }
        return [rollouts[i] for i in done if i in rollouts], [i for i in rollout_ids if i not in status_of]

    def counts(self) -> LightningStoreStatistics:
        (totals,) = self._session.rows(_COUNTS)
        by_status = {row["status"]: row["count"] for row in self._session.rows(_COUNTS_BY_STATUS)}
        return cast("LightningStoreStatistics", {**totals, "rollouts_by_status": by_status})

    def outcome(self, key: str) -> str | None:
        kept: str | None = self._session.scalar(_OUTCOME, {"key": key})
        return kept

    def keep_outcome(self, key: str, outcome: str) -> None:
        self._session.run(_KEEP_OUTCOME, {"key": key, "outcome_json": outcome})
        last = self._session.scalar(_LAST_OUTCOME)
        if last % _FORGOTTEN_AT_ONCE == 0:
            self._session.run(_FORGET_OUTCOMES, {"last": last - MOST_OUTCOMES})
