"""The SQL of the store: statements that are the same at every call, and `Query` translated to SQL.

Constant statements are compiled once for each dialect and run on the driver's own connection.

SQLAlchemy's execution costs several times what the statement itself costs in SQLite. A statement of this store has
plain columns and plain values, so what SQLAlchemy adds to running it (conversions, result objects) is not missed.
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
from ..tables import OBJECT_OF, Condition, Kind, Query, Row, Values, WalkStep, attempt_of, rollout_of
from .schema import ATTEMPTS, RESOURCES, ROLLOUTS, SPANS, WORKERS

_SQLITE: Final = sqlite.dialect(paramstyle="named")


class Statement:
    """SQL statement with named parameters."""

    def __init__(self, clause: ClauseElement) -> None:
        self._clause = clause
        self._texts: dict[str, tuple[str, Values]] = {}
        self._columns: tuple[str, ...] = ()

    def text(self, dialect: Dialect) -> tuple[str, Values]:
        """Return the text in a dialect, and the values of parameters that are always the same."""
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
    """Connection on which statements run, in its transaction."""

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
        found = self._cursor.fetchall()
        if not found:
            return []
        columns = statement.columns(self._cursor.description)
        return [dict(zip(columns, row, strict=True)) for row in found]

    def row(self, statement: Statement, values: Values) -> Row | None:
        """Return the only row of the answer, or None."""
        found = self.rows(statement, values)
        return found[0] if found else None

    def scalar(self, statement: Statement, values: Values) -> Any:
        """Return the only value of the only row, or None."""
        self._execute(statement, values)
        found = self._cursor.fetchall()
        return found[0][0] if found else None

    def select(self, query: Select[Any]) -> Sequence[Any]:
        """Return all rows of a query that was made for this call."""
        return self._connection.execute(query).mappings().all()

    def _execute(self, statement: Statement, values: Values) -> None:
        text, constants = statement.text(self._dialect)
        self._cursor.execute(text, values | constants if constants else values)


class _Test(FunctionElement[bool]):
    """Test of a column against a value, written as each kind of database has it."""

    type: TypeEngine[Any] = NullType()  # a Boolean is written `… = 1` for SQLite, which then uses no index
    inherit_cache = True
    texts: ClassVar[Mapping[str, str]]
    """SQL by the name of the dialect, with braces for the column and for the value."""


class any_of(_Test):
    """SQL test `any_of(column, values)`: the column is one of `values`, a JSON list in one parameter, however long."""

    inherit_cache = True
    texts: ClassVar[Mapping[str, str]] = {
        "sqlite": "{} IN (SELECT value FROM json_each({}))",
        "postgresql": "{} IN (SELECT json_array_elements_text(CAST({} AS json)))",
    }


class contains(_Test):
    """SQL test `contains(column, text)`: the column contains the text exactly as it is written."""

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
    """Return the names of the columns that an insert gives values to: all but the number, which the database gives."""
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
    return rollout_of(row), None if row[_PREFIX + "attempt_id"] is None else attempt_of(row, _PREFIX)


def item_of(kind: Kind, row: Row) -> Any:
    """Return the object of a row of `page_of`."""
    return lifecycle.with_attempt(*rollout_and_latest(row)) if kind == "rollout" else OBJECT_OF[kind](row)


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
    # What a database sorts, or passes over, it copies: the numbers of the rows are, and the page alone is read.
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


def step_of(step: WalkStep, number: int | None) -> Select[Any]:
    """Select the rows of a step that begins beyond the rollout of this number, in order."""
    column = ROLLOUTS.c.number
    order = column.desc() if step.descending else column.asc()
    page = select(column).order_by(order).limit(step.limit)
    if step.statuses is not None:
        page = page.where(_test(Condition("status", "one_of", step.statuses), ROLLOUTS))
    if number is not None:
        page = page.where(column < number if step.descending else column > number)
    chosen = page.subquery()
    return ROLLOUTS_WITH_LATEST.where(column.in_(select(chosen.c.number))).order_by(order)


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
        # An index in whose order the rows are wanted serves for one value, and not for a list of them.
        condition = Condition(condition.field, "equals", condition.value[0])
    if condition.test == "equals":
        equal: ColumnElement[bool] = column == condition.value
        return equal
    if condition.test == "contains":
        return contains(column, condition.value)
    return any_of(column, literal(json.dumps(condition.value)))
