"""Tables in SQL: every method is one or two statements on the connection of the running transaction."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import Connection, Table, and_, bindparam, func, insert, select, update
from sqlalchemy.dialects.sqlite import Insert
from sqlalchemy.dialects.sqlite import insert as insert_or_update

from ..types import TERMINAL_ROLLOUT_STATUSES, Attempt, PaginatedResult, ResourcesUpdate, Rollout, Span, Worker
from . import lifecycle
from .query import Query
from .sql_query import ROLLOUTS_WITH_LATEST, any_of, item_of, page_of, rollout_and_latest, total_of
from .sql_rows import (
    attempt_columns,
    attempt_of,
    resources_columns,
    resources_of,
    rollout_columns,
    span_columns,
    worker_columns,
    worker_of,
)
from .sql_schema import ATTEMPTS, RESOURCES, ROLLOUTS, SPANS, WORKERS
from .vocabulary import LightningStoreStatistics

# Parameters of the statements: an id to look for is the_…, a new value has the name of its column. The statements are
# built once: building them costs more than running them.
_THE_ROLLOUT: Final = ROLLOUTS.c.rollout_id == bindparam("the_rollout")
_THE_ATTEMPT: Final = and_(
    ATTEMPTS.c.rollout_id == bindparam("the_rollout"), ATTEMPTS.c.attempt_id == bindparam("the_attempt")
)

_ONE_ROLLOUT: Final = ROLLOUTS_WITH_LATEST.where(_THE_ROLLOUT)
_SOME_ROLLOUTS: Final = ROLLOUTS_WITH_LATEST.where(any_of(ROLLOUTS.c.rollout_id, bindparam("the_rollouts")))
_SOME_STATUSES: Final = select(ROLLOUTS.c.rollout_id, ROLLOUTS.c.status).where(
    any_of(ROLLOUTS.c.rollout_id, bindparam("the_rollouts"))
)
_QUEUED: Final = (
    ROLLOUTS_WITH_LATEST.where(ROLLOUTS.c.queue_position.is_not(None))
    .order_by(ROLLOUTS.c.queue_position)
    .limit(bindparam("count"))
)
_HAS_QUEUED: Final = select(ROLLOUTS.c.number).where(ROLLOUTS.c.queue_position.is_not(None)).limit(1)
_QUEUE_END: Final = select(func.coalesce(func.max(ROLLOUTS.c.queue_position), 0) + 1)
_INSERT_ROLLOUT: Final = insert(ROLLOUTS)
_EDIT_ROLLOUT: Final = (
    update(ROLLOUTS)
    .where(_THE_ROLLOUT)
    .values({name: bindparam(name) for name in ("mode", "resources_id", "input_json", "config_json", "metadata_json")})
)
_MOVE_ROLLOUT: Final = (
    update(ROLLOUTS)
    .where(_THE_ROLLOUT)
    .values({name: bindparam(name) for name in ("status", "end_time", "queue_position")})
)
_MOVE_QUEUED_ROLLOUT: Final = update(ROLLOUTS).where(_THE_ROLLOUT).values(status=bindparam("status"))

_ONE_ATTEMPT: Final = select(ATTEMPTS).where(_THE_ATTEMPT)
_INSERT_ATTEMPT: Final = insert(ATTEMPTS)
_COUNT_ATTEMPT: Final = update(ROLLOUTS).where(_THE_ROLLOUT).values(attempts=bindparam("attempts"))
_EDIT_ATTEMPT: Final = (
    update(ATTEMPTS)
    .where(_THE_ATTEMPT)
    .values(
        {
            name: bindparam(name)
            for name in ("status", "end_time", "worker_id", "last_heartbeat_time", "metadata_json", "deadline")
        }
    )
)
_OVERDUE: Final = select(ATTEMPTS.c.rollout_id, ATTEMPTS.c.attempt_id).where(
    ATTEMPTS.c.deadline.is_not(None), ATTEMPTS.c.deadline <= bindparam("now")
)
_NEXT_DEADLINE: Final = (
    select(ATTEMPTS.c.deadline).where(ATTEMPTS.c.deadline.is_not(None)).order_by(ATTEMPTS.c.deadline).limit(1)
)
_TAKE_NUMBERS: Final = (
    update(ATTEMPTS)
    .where(_THE_ATTEMPT)
    .values(last_span_number=ATTEMPTS.c.last_span_number + bindparam("count"))
    .returning(ATTEMPTS.c.last_span_number)
)
_RAISE_NUMBER: Final = (
    update(ATTEMPTS)
    .where(_THE_ATTEMPT, ATTEMPTS.c.last_span_number < bindparam("reached"))
    .values(last_span_number=bindparam("reached"))
)
_KNOWN_SPANS: Final = select(SPANS.c.span_id).where(
    SPANS.c.rollout_id == bindparam("the_rollout"),
    SPANS.c.attempt_id == bindparam("the_attempt"),
    any_of(SPANS.c.span_id, bindparam("the_spans")),
)
_INSERT_SPAN: Final = insert(SPANS)
_ONE_RESOURCES: Final = select(RESOURCES).where(RESOURCES.c.resources_id == bindparam("the_resources"))
_LATEST_RESOURCES: Final = select(RESOURCES).order_by(RESOURCES.c.write_number.desc()).limit(1)
_RESOURCES_END: Final = select(func.coalesce(func.max(RESOURCES.c.write_number), 0) + 1)
_ONE_WORKER: Final = select(WORKERS).where(WORKERS.c.worker_id == bindparam("the_worker"))


def _write(table: Table, key: str) -> Insert:
    """Insert a row, or replace all of it but its number."""
    statement = insert_or_update(table)
    return statement.on_conflict_do_update(
        index_elements=[key],
        set_={column.name: statement.excluded[column.name] for column in table.c if column.name not in ("number", key)},
    )


_WRITE_RESOURCES: Final = _write(RESOURCES, "resources_id")
_WRITE_WORKER: Final = _write(WORKERS, "worker_id")


class SqlTables:
    """The storage of `SqlLightningStore`, on one connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def rollout(self, rollout_id: str) -> tuple[Rollout, Attempt | None] | None:
        row = self._connection.execute(_ONE_ROLLOUT, {"the_rollout": rollout_id}).mappings().first()
        return None if row is None else rollout_and_latest(row)

    def queued(self, limit: int) -> Sequence[tuple[Rollout, Attempt | None]]:
        rows = self._connection.execute(_QUEUED, {"count": limit}).mappings()
        return [rollout_and_latest(row) for row in rows]

    def has_queued(self) -> bool:
        return self._connection.scalar(_HAS_QUEUED) is not None

    def insert_rollouts(self, rollouts: Sequence[Rollout]) -> None:
        if not rollouts:
            return
        end = self._queue_end()
        rows = []
        for index, rollout in enumerate(rollouts):
            queued = rollout.status in lifecycle.QUEUED_STATUSES
            rows.append(rollout_columns(rollout) | {"attempts": 0, "queue_position": end + index if queued else None})
        self._connection.execute(_INSERT_ROLLOUT, rows)

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
            self._connection.execute(statement, the_rollout | move)
        before, after = vars(old), vars(new)
        if any(after[name] is not before[name] for name in ("mode", "resources_id", "input", "config", "metadata")):
            self._connection.execute(_EDIT_ROLLOUT, the_rollout | rollout_columns(new))

    def attempt(self, rollout_id: str, attempt_id: str) -> Attempt | None:
        ids = {"the_rollout": rollout_id, "the_attempt": attempt_id}
        row = self._connection.execute(_ONE_ATTEMPT, ids).mappings().first()
        return None if row is None else attempt_of(row)

    def insert_attempt(self, attempt: Attempt, deadline: float | None) -> None:
        self._connection.execute(
            _INSERT_ATTEMPT, attempt_columns(attempt) | {"last_span_number": 0, "deadline": deadline}
        )
        self._connection.execute(_COUNT_ATTEMPT, {"the_rollout": attempt.rollout_id, "attempts": attempt.sequence_id})

    def replace_attempt(self, attempt: Attempt, deadline: float | None) -> None:
        ids = {"the_rollout": attempt.rollout_id, "the_attempt": attempt.attempt_id}
        self._connection.execute(_EDIT_ATTEMPT, attempt_columns(attempt) | ids | {"deadline": deadline})

    def overdue(self, now: float) -> Sequence[tuple[str, str]]:
        return [(row.rollout_id, row.attempt_id) for row in self._connection.execute(_OVERDUE, {"now": now})]

    def next_deadline(self) -> float | None:
        deadline: float | None = self._connection.scalar(_NEXT_DEADLINE)
        return deadline

    def take_span_numbers(self, rollout_id: str, attempt_id: str, count: int) -> int | None:
        ids = {"the_rollout": rollout_id, "the_attempt": attempt_id, "count": count}
        last: int | None = self._connection.scalar(_TAKE_NUMBERS, ids)
        return None if last is None else last - count + 1

    def insert_spans(self, rollout_id: str, attempt_id: str, spans: Sequence[Span]) -> Sequence[Span]:
        ids: dict[str, Any] = {"the_rollout": rollout_id, "the_attempt": attempt_id}
        first_of: dict[str, Span] = {}
        for span in spans:
            first_of.setdefault(span.span_id, span)
        known = set(self._connection.scalars(_KNOWN_SPANS, ids | {"the_spans": json.dumps(list(first_of))}))
        new = [span for span_id, span in first_of.items() if span_id not in known]
        if new:
            self._connection.execute(_INSERT_SPAN, [span_columns(span) for span in new])
            self._connection.execute(_RAISE_NUMBER, ids | {"reached": max(span.sequence_id for span in new)})
        return new

    def latest_resources(self) -> ResourcesUpdate | None:
        row = self._connection.execute(_LATEST_RESOURCES).mappings().first()
        return None if row is None else resources_of(row)

    def resources(self, resources_id: str) -> ResourcesUpdate | None:
        row = self._connection.execute(_ONE_RESOURCES, {"the_resources": resources_id}).mappings().first()
        return None if row is None else resources_of(row)

    def write_resources(self, update: ResourcesUpdate) -> None:
        number = self._connection.execute(_RESOURCES_END).scalar_one()
        self._connection.execute(_WRITE_RESOURCES, resources_columns(update) | {"write_number": number})

    def worker(self, worker_id: str) -> Worker | None:
        row = self._connection.execute(_ONE_WORKER, {"the_worker": worker_id}).mappings().first()
        return None if row is None else worker_of(row)

    def write_worker(self, worker: Worker) -> None:
        self._connection.execute(_WRITE_WORKER, worker_columns(worker))

    def select(self, query: Query) -> PaginatedResult[Any]:
        rows = self._connection.execute(page_of(query)).mappings().all()
        items = [item_of(query.kind, row) for row in rows]
        whole = query.limit == -1 and query.offset == 0
        total = len(items) if whole else self._connection.execute(total_of(query)).scalar_one()
        return PaginatedResult.model_construct(items=items, limit=query.limit, offset=query.offset, total=total)

    def ended(self, rollout_ids: Sequence[str]) -> tuple[Sequence[Rollout], Sequence[str]]:
        rows = self._connection.execute(_SOME_STATUSES, {"the_rollouts": json.dumps(list(rollout_ids))})
        status_of = {row.rollout_id: row.status for row in rows}
        done = [i for i in rollout_ids if status_of.get(i) in TERMINAL_ROLLOUT_STATUSES]
        found = self._connection.execute(_SOME_ROLLOUTS, {"the_rollouts": json.dumps(done)}).mappings()
        rollouts = {row["rollout_id"]: lifecycle.with_attempt(*rollout_and_latest(row)) for row in found}
        return [rollouts[i] for i in done], [i for i in rollout_ids if i not in status_of]

    def counts(self) -> LightningStoreStatistics:
        return LightningStoreStatistics(
            total_rollouts=self._count(ROLLOUTS),
            total_attempts=self._count(ATTEMPTS),
            total_spans=self._count(SPANS),
            total_resources=self._count(RESOURCES),
            total_workers=self._count(WORKERS),
        )

    def _queue_end(self) -> int:
        return int(self._connection.execute(_QUEUE_END).scalar_one())

    def _count(self, table: Table) -> int:
        return int(self._connection.execute(select(func.count()).select_from(table)).scalar_one())
