"""`Query` as SQL."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

from sqlalchemy import ColumnElement, Select, Table, and_, func, literal, or_, select, true

from ...types import Attempt, Rollout
from .. import lifecycle
from ..query import Condition, Kind, Query
from ..rows import Row, attempt_of, resources_of, rollout_of, span_of, worker_of
from .dialect import any_of, contains
from .schema import ATTEMPTS, RESOURCES, ROLLOUTS, SPANS, WORKERS

_PREFIX: Final = "attempt_"
_TABLES: Final[dict[Kind, Table]] = {
    "rollout": ROLLOUTS,
    "attempt": ATTEMPTS,
    "span": SPANS,
    "resources": RESOURCES,
    "worker": WORKERS,
}
ROLLOUTS_WITH_LATEST: Final = select(
    ROLLOUTS, *(column.label(_PREFIX + column.name) for column in ATTEMPTS.c)
).outerjoin_from(
    ROLLOUTS,
    ATTEMPTS,
    and_(ATTEMPTS.c.rollout_id == ROLLOUTS.c.rollout_id, ATTEMPTS.c.sequence_id == ROLLOUTS.c.attempts),
)
"""Every rollout with its latest attempt; rows for `rollout_and_latest`."""


def rollout_and_latest(row: Row) -> tuple[Rollout, Attempt | None]:
    """Both objects of a row of `ROLLOUTS_WITH_LATEST`."""
    return rollout_of(row), None if row[_PREFIX + "attempt_id"] is None else attempt_of(row, _PREFIX)


def _rollout_item(row: Row) -> Rollout:
    return lifecycle.with_attempt(*rollout_and_latest(row))


_ITEM_OF: Final[dict[Kind, Callable[[Row], Any]]] = {
    "rollout": _rollout_item,
    "attempt": attempt_of,
    "span": span_of,
    "resources": resources_of,
    "worker": worker_of,
}


def item_of(kind: Kind, row: Row) -> Any:
    """The object of a row of `page_of`."""
    return _ITEM_OF[kind](row)


def page_of(query: Query) -> Select[Any]:
    """The rows of the page, in order."""
    table = _TABLES[query.kind]
    statement = ROLLOUTS_WITH_LATEST if query.kind == "rollout" else select(table)
    statement = statement.where(_where(query, table))
    descending = query.sort_order == "desc"
    if query.sort_by is not None:
        field = table.c[query.sort_by]
        order = field.desc().nulls_last() if descending else field.asc().nulls_first()
        statement = statement.order_by(order, table.c.number.asc())
    else:
        statement = statement.order_by(table.c.number.desc() if descending else table.c.number.asc())
    if query.limit != -1:
        statement = statement.limit(query.limit)
    return statement.offset(query.offset) if query.offset else statement


def total_of(query: Query) -> Select[Any]:
    """How many items match, on all pages."""
    table = _TABLES[query.kind]
    return select(func.count().label("total")).select_from(table).where(_where(query, table))


def _where(query: Query, table: Table) -> ColumnElement[bool]:
    scope = and_(true(), *(_test(condition, table) for condition in query.scope))
    if not query.filters:
        return scope
    join = and_ if query.logic == "and" else or_
    return and_(scope, join(*(_test(condition, table) for condition in query.filters)))


def _test(condition: Condition, table: Table) -> ColumnElement[bool]:
    column = table.c[condition.field]
    if condition.test == "equals":
        equal: ColumnElement[bool] = column == condition.value
        return equal
    if condition.test == "contains":
        return contains(column, condition.value)
    return any_of(column, literal(json.dumps(condition.value)))
