"""The SQL of the store: constant statements, and queries and listings translated to SQL.

Constant statements are compiled once per dialect and run on the driver's connection: SQLAlchemy's execution costs
several times as much as a statement in SQLite, and its conversions are not needed for plain values.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final

from sqlalchemy import (
    ClauseElement,
    ColumnElement,
    Connection,
    Dialect,
    Select,
    Table,
    TextClause,
    and_,
    case,
    func,
    literal,
    or_,
    select,
    text,
    true,
)
from sqlalchemy.dialects import sqlite
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import NullType, TypeEngine

from ...types import Attempt, Rollout
from .. import lifecycle
from ..listing import RolloutFilter, json_spellings
from ..tables import Condition, Kind, Query, Row, Values, object_of
from .schema import ATTEMPTS, RESOURCES, ROLLOUTS, SPANS, WORKERS

_SQLITE: Final = sqlite.dialect(paramstyle="named")


class Statement:
    """SQL statement with named parameters."""

    def __init__(self, clause: ClauseElement) -> None:
        self._clause = clause
        self._texts: dict[str, tuple[str, Values]] = {}
        self._columns: tuple[str, ...] = ()

    def text(self, dialect: Dialect) -> tuple[str, Values]:
        """Return the text in a dialect, and the values of constant parameters."""
        text = self._texts.get(dialect.name)
        if text is None:
            compiled = self._clause.compile(dialect=_SQLITE if dialect.name == "sqlite" else dialect)
            constants = {name: value for name, value in compiled.params.items() if value is not None}
            text = self._texts[dialect.name] = (str(compiled), constants)
        return text

    def columns(self, description: Sequence[Sequence[Any]]) -> tuple[str, ...]:
        """Return the names of the columns of its rows; `description` is the cursor's."""
        if not self._columns:
            self._columns = tuple(column[0] for column in description)
        return self._columns


class StatementRunner:
    """Runs statements on a connection, in its transaction."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._dialect = connection.dialect
        self._cursor: Any = connection.connection.cursor()

    def run(self, statement: Statement, values: Values) -> int:
        """Run a statement that returns no rows, and return how many rows it changed."""
        self._execute(statement, values)
        return int(self._cursor.rowcount)

    def run_many(self, statement: Statement, rows: Sequence[Values]) -> None:
        """Run a statement that returns no rows once for each of `rows`, in order."""
        if len(rows) == 1:
            self._execute(statement, rows[0])
        else:
            self._cursor.executemany(statement.text(self._dialect)[0], rows)

    def rows(self, statement: Statement, values: Values) -> list[Row]:
        """Return all rows of the answer."""
        self._execute(statement, values)
        rows = self._cursor.fetchall()
        if not rows:
            return []
        columns = statement.columns(self._cursor.description)
        return [dict(zip(columns, row, strict=True)) for row in rows]

    def row(self, statement: Statement, values: Values) -> Row | None:
        """Return the only row of the answer, or None."""
        rows = self.rows(statement, values)
        return rows[0] if rows else None

    def scalar(self, statement: Statement, values: Values) -> Any:
        """Return the only value of the only row, or None."""
        self._execute(statement, values)
        rows = self._cursor.fetchall()
        return rows[0][0] if rows else None

    def select(self, query: Select[Any]) -> Sequence[Any]:
        """Return all rows of a query that was built for this call."""
        return self._connection.execute(query).mappings().all()

    def _execute(self, statement: Statement, values: Values) -> None:
        text, constants = statement.text(self._dialect)
        self._cursor.execute(text, values | constants if constants else values)


class _Test(FunctionElement[bool]):
    """Test of a column against a value, written differently for each database."""

    type: TypeEngine[Any] = NullType()  # a Boolean is written `… = 1` for SQLite, which then uses no index
    inherit_cache = True
    texts: ClassVar[Mapping[str, str]]
    """SQL by the name of the dialect, with braces for the column and for the value."""


class any_of(_Test):
    """SQL test `any_of(column, values)`: the column is one of `values`, a JSON list in one parameter."""

    inherit_cache = True
    texts: ClassVar[Mapping[str, str]] = {
        "sqlite": "{} IN (SELECT value FROM json_each({}))",
        "postgresql": "{} IN (SELECT json_array_elements_text(CAST({} AS json)))",
    }


class contains(_Test):
    """SQL test `contains(column, text)`: the column contains the text, case-sensitively and without wildcards."""

    inherit_cache = True
    texts: ClassVar[Mapping[str, str]] = {"sqlite": "instr({}, {}) > 0", "postgresql": "strpos({}, {}) > 0"}


@compiles(_Test)
def _compiled(element: _Test, compiler: SQLCompiler, **options: Any) -> str:
    sides = (compiler.process(clause, **options) for clause in element.clauses)
    return element.texts[compiler.dialect.name].format(*sides)


def insert_or_replace(table: Table, key: str) -> TextClause:
    """Insert a row, or replace all of it but its number."""
    names = stored_columns(table)
    new = ", ".join(f"{name} = excluded.{name}" for name in names if name != key)
    return text(f"{_insert(table, names)} ON CONFLICT ({key}) DO UPDATE SET {new}")


def insert_new(table: Table, key: Iterable[str]) -> TextClause:
    """Insert a row unless there is one with this key."""
    return text(f"{_insert(table, stored_columns(table))} ON CONFLICT ({', '.join(key)}) DO NOTHING")


def stored_columns(table: Table) -> list[str]:
    """Return the names of all columns but the number, which the database assigns."""
    return [column.name for column in table.c if column.name != "number"]


def _insert(table: Table, names: list[str]) -> str:
    values = ", ".join(f":{name}" for name in names)
    return f"INSERT INTO {table.name} ({', '.join(names)}) VALUES ({values})"


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
"""Every rollout with its latest attempt, as rows for `rollout_and_latest`."""


def rollout_and_latest(row: Row) -> tuple[Rollout, Attempt | None]:
    """Return both objects of a row of `ROLLOUTS_WITH_LATEST`."""
    attempt = None if row[_PREFIX + "attempt_id"] is None else object_of("attempt", row, _PREFIX)
    return object_of("rollout", row), attempt


def item_of(kind: Kind, row: Row) -> Any:
    """Return the object of a row of `page_of`."""
    return lifecycle.with_attempt(*rollout_and_latest(row)) if kind == "rollout" else object_of(kind, row)


def numbers_of(query: Query) -> Select[Any]:
    """Select the numbers of the rows of the page, in order."""
    table = _TABLES[query.kind]
    return _cut(select(table.c.number), query, _order(query, table))


def rows_of(kind: Kind, numbers: Sequence[int]) -> Select[Any]:
    """Select the rows of these numbers, in any order."""
    table = _TABLES[kind]
    whole = ROLLOUTS_WITH_LATEST if kind == "rollout" else select(table)
    return whole.where(table.c.number.in_(numbers))


def page_of(query: Query) -> Select[Any]:
    """Select the rows of the page, in order."""
    table = _TABLES[query.kind]
    order = _order(query, table)
    whole = ROLLOUTS_WITH_LATEST if query.kind == "rollout" else select(table)
    if query.kind not in ("rollout", "span") or query.limit == -1:
        return _cut(whole, query, order)
    # Sort and skip only the numbers, and read the rows of the page alone.
    page = numbers_of(query).subquery()
    return whole.where(table.c.number.in_(select(page.c.number))).order_by(*order)


def _order(query: Query, table: Table) -> list[ColumnElement[Any]]:
    descending = query.sort_order == "desc"
    if query.sort_by is None:
        return [table.c.number.desc() if descending else table.c.number.asc()]
    field = table.c[query.sort_by]
    return [field.desc().nulls_last() if descending else field.asc().nulls_first(), table.c.number.asc()]


def _cut(statement: Select[Any], query: Query, order: list[ColumnElement[Any]]) -> Select[Any]:
    """Return a statement for the page alone."""
    statement = statement.where(_where(query, _TABLES[query.kind])).order_by(*order)
    if query.limit != -1:
        statement = statement.limit(query.limit)
    return statement.offset(query.offset) if query.offset else statement


def listing_of(wanted: RolloutFilter, before: int | None, limit: int) -> Select[Any]:
    """Select the rows of a page of rollouts, the newest first, of those that `examined_of` selects."""
    rollouts, attempts = ROLLOUTS.c, ATTEMPTS.c
    examined = examined_of(wanted, before, limit).subquery()
    page = ROLLOUTS_WITH_LATEST.where(rollouts.number.in_(select(examined.c.number)))
    if wanted.status_in is not None:
        page = page.where(rollouts.status.in_(wanted.status_in))
    for column, value in (
        (rollouts.mode, wanted.mode),
        (rollouts.step, wanted.step),
        (rollouts.group_id, wanted.group),
    ):
        if value is not None:
            page = page.where(column == value)
    if wanted.reward_min is not None:
        page = page.where(rollouts.reward >= wanted.reward_min)
    if wanted.reward_max is not None:
        page = page.where(rollouts.reward <= wanted.reward_max)
    if wanted.worker_contains is not None:
        page = page.where(contains(attempts.worker_id, wanted.worker_contains))
    if wanted.input_contains is not None:
        page = page.where(_contains_text(wanted.input_contains, rollouts.input_json))
    if wanted.text is not None:
        spans = select(SPANS.c.number).where(
            SPANS.c.rollout_id == rollouts.rollout_id, _contains_text(wanted.text, SPANS.c.body_json)
        )
        columns = (rollouts.rollout_id, rollouts.input_json, rollouts.metadata_json, attempts.metadata_json)
        page = page.where(or_(_contains_text(wanted.text, *columns), spans.exists()))
    return page.order_by(rollouts.number.desc()).limit(limit)


def examined_of(wanted: RolloutFilter, before: int | None, limit: int) -> Select[Any]:
    """Select the numbers of the rollouts that a listing looks at, the newest first, by the narrowest index."""
    rollouts = ROLLOUTS.c
    numbers = select(rollouts.number).order_by(rollouts.number.desc()).limit(wanted.max_examined(limit))
    if before is not None:
        numbers = numbers.where(rollouts.number < before)
    if wanted.group is not None:
        return numbers.where(rollouts.group_id == wanted.group)
    if wanted.step is not None:
        return numbers.where(rollouts.step == wanted.step)
    if wanted.status_in is not None and len(wanted.status_in) == 1:
        return numbers.where(rollouts.status == wanted.status_in[0])
    return numbers


def extent_of(examined: Select[Any]) -> Select[Any]:
    """Select the least number (`last`) and the count of a selection of numbers."""
    numbers = examined.subquery()
    extent: Any = select(func.min(numbers.c.number).label("last"), func.count().label("count"))
    selected: Select[Any] = extent.select_from(numbers)
    return selected


def _contains_text(text: str, *columns: ColumnElement[Any]) -> ColumnElement[bool]:
    spellings = set(json_spellings(text))
    return or_(*(contains(func.coalesce(column, ""), spelling) for column in columns for spelling in spellings))


def groups_of(before: int | None, limit: int) -> Select[Any]:
    """Select the rollouts of a page of groups: the newest group first, its oldest rollout first."""
    newest, older, member = ROLLOUTS.alias(), ROLLOUTS.alias(), ROLLOUTS.alias()
    is_first = (
        ~select(older.c.number).where(older.c.group_id == newest.c.group_id, older.c.number < newest.c.number).exists()
    )
    firsts = select(newest.c.number, newest.c.group_id).where(newest.c.group_id.is_not(None), is_first)
    if before is not None:
        firsts = firsts.where(newest.c.number < before)
    page = firsts.order_by(newest.c.number.desc()).limit(limit).subquery()
    # The task is read of the first rollout alone: it may be long.
    task = case((member.c.number == page.c.number, member.c.input_json)).label("input_json")
    members: Select[Any] = select(page.c.number.label("first"), member.c.group_id, member.c.step, member.c.reward, task)
    joined = members.join_from(page, member, member.c.group_id == page.c.group_id)
    return joined.order_by(page.c.number.desc(), member.c.number)


def total_of(query: Query) -> Select[Any]:
    """Count the items that match, on all pages."""
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
    if condition.test == "one_of" and len(condition.value) == 1:
        # For a single value the database can use an index that also gives the order.
        condition = Condition(condition.field, "equals", condition.value[0])
    if condition.test == "equals":
        equal: ColumnElement[bool] = column == condition.value
        return equal
    if condition.test == "contains":
        return contains(column, condition.value)
    return any_of(column, literal(json.dumps(condition.value)))
