"""Tables in SQL: every method is one or two statements on the connection of the running transaction."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Sequence
from functools import partial
from typing import Any, Final, cast

from sqlalchemy import Connection, Table, bindparam, insert, select, text

from ...types import TERMINAL_ROLLOUT_STATUSES, Attempt, PaginatedResult, ResourcesUpdate, Rollout, Span, Worker
from .. import lifecycle
from ..base import LightningStoreStatistics
from ..listing import GroupPage, RolloutFilter, RolloutGroup, RolloutPage
from ..tables import (
    MOST_OUTCOMES,
    Kind,
    Query,
    Row,
    Values,
    columns_of,
    content_changed,
    object_of,
    readable,
)
from .schema import ATTEMPTS, OUTCOMES, RESOURCES, ROLLOUTS, SPANS, WORKERS
from .statements import (
    ROLLOUTS_WITH_LATEST,
    Statement,
    StatementRunner,
    any_of,
    examined_of,
    extent_of,
    groups_of,
    insert_new,
    insert_or_replace,
    item_of,
    listing_of,
    numbers_of,
    page_of,
    rollout_and_latest,
    rows_of,
    stored_columns,
    total_of,
)

_FORGOTTEN_AT_ONCE: Final = 256

# Parameters of the statements: the_… is an id to look for, and a new value has the name of its column.

_ROLLOUT = "rollout_id = :the_rollout"
_ATTEMPT = "rollout_id = :the_rollout AND attempt_id = :the_attempt"


def _sql(statement: str) -> Statement:
    return Statement(text(statement))


def _insert(table: Table) -> Statement:
    return Statement(insert(table).values({name: bindparam(name) for name in stored_columns(table)}).inline())


def _set(table: Table, where: str, *names: str) -> Statement:
    return _sql(f"UPDATE {table.name} SET {', '.join(f'{name} = :{name}' for name in names)} WHERE {where}")


_ONE_ROLLOUT: Final = Statement(ROLLOUTS_WITH_LATEST.where(ROLLOUTS.c.rollout_id == bindparam("the_rollout")))
_SOME_ROLLOUTS: Final = Statement(ROLLOUTS_WITH_LATEST.where(any_of(ROLLOUTS.c.rollout_id, bindparam("the_rollouts"))))
_SOME_STATUSES: Final = Statement(
    select(ROLLOUTS.c.rollout_id, ROLLOUTS.c.status).where(any_of(ROLLOUTS.c.rollout_id, bindparam("the_rollouts")))
)
_QUEUED: Final = Statement(
    ROLLOUTS_WITH_LATEST.where(ROLLOUTS.c.queue_position.is_not(None))
    .order_by(ROLLOUTS.c.queue_position)
    .limit(bindparam("count"))
)
_HAS_QUEUED: Final = _sql("SELECT number FROM agl_rollouts WHERE queue_position IS NOT NULL LIMIT 1")
_LAST_QUEUED: Final = _sql("SELECT max(queue_position) FROM agl_rollouts WHERE queue_position IS NOT NULL")
_INSERT_ROLLOUT: Final = _insert(ROLLOUTS)
_EDIT_ROLLOUT: Final = _set(
    ROLLOUTS, _ROLLOUT, "mode", "resources_id", "input_json", "config_json", "metadata_json", "step", "group_id"
)
_MOVE_ROLLOUT: Final = _set(ROLLOUTS, _ROLLOUT, "status", "end_time", "queue_position")
_MOVE_QUEUED_ROLLOUT: Final = _set(ROLLOUTS, _ROLLOUT, "status")
_COUNT_ATTEMPT: Final = _sql(f"UPDATE agl_rollouts SET attempts = :attempts, reward = NULL WHERE {_ROLLOUT}")
_SET_REWARD: Final = _sql(
    "UPDATE agl_rollouts SET reward = ("
    f"SELECT reward FROM agl_spans WHERE {_ATTEMPT} AND reward IS NOT NULL "
    "ORDER BY sequence_id DESC, number DESC LIMIT 1) "
    f"WHERE {_ROLLOUT} AND attempts = (SELECT sequence_id FROM agl_attempts WHERE {_ATTEMPT})"
)
_DELETE_SOME_SPANS: Final = _sql(
    f"DELETE FROM agl_spans WHERE number IN (SELECT number FROM agl_spans WHERE {_ROLLOUT} LIMIT :count)"
)
_DELETED: Final = tuple(_sql(f"DELETE FROM {table.name} WHERE {_ROLLOUT}") for table in (SPANS, ATTEMPTS, ROLLOUTS))

_ONE_ATTEMPT: Final = Statement(
    select(ATTEMPTS).where(
        ATTEMPTS.c.rollout_id == bindparam("the_rollout"), ATTEMPTS.c.attempt_id == bindparam("the_attempt")
    )
)
_INSERT_ATTEMPT: Final = _insert(ATTEMPTS)
_EDIT_ATTEMPT: Final = _set(
    ATTEMPTS, _ATTEMPT, "status", "end_time", "worker_id", "last_heartbeat_time", "metadata_json", "deadline"
)
_OVERDUE: Final = _sql(
    "SELECT rollout_id, attempt_id FROM agl_attempts WHERE deadline IS NOT NULL AND deadline <= :now"
)
_NEXT_DEADLINE: Final = _sql("SELECT min(deadline) FROM agl_attempts WHERE deadline IS NOT NULL")
_REACHED_NUMBER: Final = _sql(f"SELECT max(last_span_number) FROM agl_attempts WHERE {_ROLLOUT}")
_TAKE_NUMBERS: Final = _sql(
    f"UPDATE agl_attempts SET last_span_number = last_span_number + :count WHERE {_ATTEMPT} RETURNING last_span_number"
)
_RAISE_NUMBER: Final = _sql(
    f"UPDATE agl_attempts SET last_span_number = :reached WHERE {_ATTEMPT} AND last_span_number < :reached"
)
_KNOWN_SPANS: Final = Statement(
    select(SPANS.c.span_id).where(
        SPANS.c.rollout_id == bindparam("the_rollout"),
        SPANS.c.attempt_id == bindparam("the_attempt"),
        any_of(SPANS.c.span_id, bindparam("the_spans")),
    )
)
_INSERT_SPAN: Final = Statement(insert_new(SPANS, ("rollout_id", "attempt_id", "span_id")))
_ONE_RESOURCES: Final = Statement(select(RESOURCES).where(RESOURCES.c.resources_id == bindparam("the_resources")))
_LATEST_RESOURCES: Final = Statement(select(RESOURCES).order_by(RESOURCES.c.write_number.desc()).limit(1))
_LAST_RESOURCES: Final = _sql("SELECT max(write_number) FROM agl_resources")
_WRITE_RESOURCES: Final = Statement(insert_or_replace(RESOURCES, "resources_id"))
_ONE_WORKER: Final = Statement(select(WORKERS).where(WORKERS.c.worker_id == bindparam("the_worker")))
_WRITE_WORKER: Final = Statement(insert_or_replace(WORKERS, "worker_id"))
_OUTCOME: Final = _sql("SELECT outcome_json FROM agl_outcomes WHERE key = :the_key")
_KEEP_OUTCOME: Final = Statement(insert_or_replace(OUTCOMES, "key"))
_LAST_OUTCOME: Final = _sql("SELECT max(number) FROM agl_outcomes")
_FORGET_OUTCOMES: Final = _sql("DELETE FROM agl_outcomes WHERE number <= :last")
_COUNTED: Final = ("rollouts", "attempts", "spans", "resources", "workers")
_COUNTS: Final = _sql(f"SELECT {', '.join(f'(SELECT count(*) FROM agl_{name}) AS total_{name}' for name in _COUNTED)}")
_COUNTS_BY_STATUS: Final = _sql("SELECT status, count(*) AS count FROM agl_rollouts GROUP BY status")


class SqlTables:
    """Tables of `SqlLightningStore`, on one connection."""

    def __init__(self, connection: Connection) -> None:
        self._session = StatementRunner(connection)
        self._last_numbers: dict[str, int] = {}

    def rollout(self, rollout_id: str) -> tuple[Rollout, Attempt | None] | None:
        row = self._session.row(_ONE_ROLLOUT, {"the_rollout": rollout_id})
        if row is None:
            return None
        if row["attempt_attempt_id"] is not None:
            self._last_numbers[row["attempt_attempt_id"]] = row["attempt_last_span_number"]
        return rollout_and_latest(row)

    def queued(self, limit: int) -> Sequence[tuple[Rollout, Attempt | None]]:
        while True:
            rows = self._session.rows(_QUEUED, {"count": limit})
            rollouts = readable(rollout_and_latest, rows, self._give_up)
            if len(rollouts) == len(rows):
                return rollouts

    def _give_up(self, row: Row) -> None:
        """Remove a damaged rollout from the queue."""
        move = {"status": "failed", "end_time": time.time(), "queue_position": None}
        self._session.run(_MOVE_ROLLOUT, {"the_rollout": row["rollout_id"]} | move)

    def has_queued(self) -> bool:
        return self._session.scalar(_HAS_QUEUED, {}) is not None

    def insert_rollouts(self, rollouts: Sequence[Rollout]) -> None:
        if not rollouts:
            return
        end = self._queue_end()
        rows = []
        for index, rollout in enumerate(rollouts):
            queued = rollout.status in lifecycle.QUEUED_STATUSES
            position = end + index if queued else None
            rows.append(columns_of("rollout", rollout) | {"attempts": 0, "reward": None, "queue_position": position})
        self._session.run_many(_INSERT_ROLLOUT, rows)

    def replace_rollout(self, old: Rollout, new: Rollout) -> None:
        the_rollout = {"the_rollout": new.rollout_id}
        if new.status != old.status:
            move: dict[str, Any] = {"status": new.status, "end_time": new.end_time, "queue_position": None}
            statement = _MOVE_ROLLOUT
            if new.status in lifecycle.QUEUED_STATUSES:
                if old.status in lifecycle.QUEUED_STATUSES:
                    move, statement = {"status": new.status}, _MOVE_QUEUED_ROLLOUT
                else:
                    move["queue_position"] = self._queue_end()
            self._session.run(statement, the_rollout | move)
        if content_changed(old, new):
            self._session.run(_EDIT_ROLLOUT, the_rollout | columns_of("rollout", new))

    def delete_spans(self, rollout_id: str, limit: int) -> int:
        return self._session.run(_DELETE_SOME_SPANS, {"the_rollout": rollout_id, "count": limit})

    def delete_rollout(self, rollout_id: str) -> None:
        for statement in _DELETED:
            self._session.run(statement, {"the_rollout": rollout_id})

    def attempt(self, rollout_id: str, attempt_id: str) -> Attempt | None:
        ids = {"the_rollout": rollout_id, "the_attempt": attempt_id}
        row = self._session.row(_ONE_ATTEMPT, ids)
        return None if row is None else object_of("attempt", row)

    def insert_attempt(self, attempt: Attempt, deadline: float | None) -> None:
        reached = 0
        if attempt.sequence_id > 1:
            reached = self._session.scalar(_REACHED_NUMBER, {"the_rollout": attempt.rollout_id}) or 0
        extra = {"last_span_number": reached, "deadline": deadline}
        self._session.run(_INSERT_ATTEMPT, columns_of("attempt", attempt) | extra)
        self._session.run(_COUNT_ATTEMPT, {"the_rollout": attempt.rollout_id, "attempts": attempt.sequence_id})

    def replace_attempt(self, attempt: Attempt, deadline: float | None) -> None:
        ids = {"the_rollout": attempt.rollout_id, "the_attempt": attempt.attempt_id}
        self._session.run(_EDIT_ATTEMPT, columns_of("attempt", attempt) | ids | {"deadline": deadline})

    def overdue(self, now: float) -> Sequence[tuple[str, str]]:
        return [(row["rollout_id"], row["attempt_id"]) for row in self._session.rows(_OVERDUE, {"now": now})]

    def next_deadline(self) -> float | None:
        deadline: float | None = self._session.scalar(_NEXT_DEADLINE, {})
        return deadline

    def take_span_numbers(self, rollout_id: str, attempt_id: str, count: int) -> int | None:
        ids = {"the_rollout": rollout_id, "the_attempt": attempt_id, "count": count}
        last: int | None = self._session.scalar(_TAKE_NUMBERS, ids)
        if last is None:
            return None
        self._last_numbers[attempt_id] = last
        return last - count + 1

    def insert_spans(self, rollout_id: str, attempt_id: str, spans: Sequence[Span]) -> Sequence[Span]:
        ids: Values = {"the_rollout": rollout_id, "the_attempt": attempt_id}
        if len(spans) == 1:
            rows = [columns_of("span", spans[0])]
            new = list(spans) if self._session.run(_INSERT_SPAN, rows[0]) else []
        else:
            first_of: dict[str, Span] = {}
            for span in spans:
                first_of.setdefault(span.span_id, span)
            stored = self._session.rows(_KNOWN_SPANS, ids | {"the_spans": json.dumps(list(first_of))})
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
        row = self._session.row(_LATEST_RESOURCES, {})
        return None if row is None else object_of("resources", row)

    def resources(self, resources_id: str) -> ResourcesUpdate | None:
        row = self._session.row(_ONE_RESOURCES, {"the_resources": resources_id})
        return None if row is None else object_of("resources", row)

    def write_resources(self, update: ResourcesUpdate) -> None:
        last = self._session.scalar(_LAST_RESOURCES, {}) or 0
        self._session.run(_WRITE_RESOURCES, columns_of("resources", update) | {"write_number": last + 1})

    def worker(self, worker_id: str) -> Worker | None:
        row = self._session.row(_ONE_WORKER, {"the_worker": worker_id})
        return None if row is None else object_of("worker", row)

    def write_worker(self, worker: Worker) -> None:
        self._session.run(_WRITE_WORKER, columns_of("worker", worker))

    def select(self, query: Query) -> PaginatedResult[Any]:
        rows = self._session.select(page_of(query))
        return self._page(query, readable(partial(item_of, query.kind), rows))

    def handles(self, query: Query) -> PaginatedResult[Any]:
        return self._page(query, [row["number"] for row in self._session.select(numbers_of(query))])

    def items(self, kind: Kind, handles: Sequence[Any]) -> list[Any]:
        rows = {row["number"]: row for row in self._session.select(rows_of(kind, handles))}
        return readable(partial(item_of, kind), (rows[number] for number in handles if number in rows))

    def _page(self, query: Query, items: list[Any]) -> PaginatedResult[Any]:
        whole = query.limit == -1 and query.offset == 0
        total = len(items) if whole else self._session.select(total_of(query))[0]["total"]
        return PaginatedResult.model_construct(items=items, limit=query.limit, offset=query.offset, total=total)

    def list_rollouts(self, wanted: RolloutFilter, before: int | None, limit: int) -> RolloutPage:
        rows = self._session.select(listing_of(wanted, before, limit))
        items = readable(lambda row: (item_of("rollout", row), row["reward"]), rows)
        position = rows[-1]["number"] if rows else None
        if len(rows) < limit:
            (extent,) = self._session.select(extent_of(examined_of(wanted, before, limit)))
            position = extent["last"] if extent["count"] == wanted.max_examined(limit) else None
        return RolloutPage.model_construct(
            items=[item for item, _ in items], rewards=[reward for _, reward in items], next=position
        )

    def list_groups(self, before: int | None, limit: int) -> GroupPage:
        groups: dict[str, RolloutGroup] = {}
        position = None
        for row in self._session.select(groups_of(before, limit)):
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
        rows = self._session.rows(_SOME_STATUSES, {"the_rollouts": json.dumps(list(rollout_ids))})
        status_of = {row["rollout_id"]: row["status"] for row in rows}
        done = [i for i in rollout_ids if status_of.get(i) in TERMINAL_ROLLOUT_STATUSES]
        rows = self._session.rows(_SOME_ROLLOUTS, {"the_rollouts": json.dumps(done)})
        rollouts: dict[str, Rollout] = {
            rollout.rollout_id: rollout for rollout in readable(partial(item_of, "rollout"), rows)
        }
        return [rollouts[i] for i in done if i in rollouts], [i for i in rollout_ids if i not in status_of]

    def counts(self) -> LightningStoreStatistics:
        (totals,) = self._session.rows(_COUNTS, {})
        by_status = {row["status"]: row["count"] for row in self._session.rows(_COUNTS_BY_STATUS, {})}
        return cast("LightningStoreStatistics", {**totals, "rollouts_by_status": by_status})

    def outcome(self, key: str) -> str | None:
        kept: str | None = self._session.scalar(_OUTCOME, {"the_key": key})
        return kept

    def keep_outcome(self, key: str, outcome: str) -> None:
        self._session.run(_KEEP_OUTCOME, {"key": key, "outcome_json": outcome})
        last = self._session.scalar(_LAST_OUTCOME, {})
        if last % _FORGOTTEN_AT_ONCE == 0:
            self._session.run(_FORGET_OUTCOMES, {"last": last - MOST_OUTCOMES})

    def _queue_end(self) -> int:
        last: int | None = self._session.scalar(_LAST_QUEUED, {})
        return (last or 0) + 1
