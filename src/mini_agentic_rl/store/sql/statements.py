"""Statements that are the same at every call: compiled once for each dialect, run on the driver's own connection.

SQLAlchemy's execution costs several times what the statement itself costs in SQLite. A statement of this store has
plain columns and plain values, so what SQLAlchemy adds to running it (conversions, result objects) is not missed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import ClauseElement, Connection, Dialect, Select
from sqlalchemy.dialects import sqlite

from ..rows import Row, Values

_SQLITE: Final = sqlite.dialect(paramstyle="named")


class Statement:
    """A statement with named parameters."""

    def __init__(self, clause: ClauseElement) -> None:
        self._clause = clause
        self._texts: dict[str, tuple[str, Values]] = {}
        self._columns: tuple[str, ...] = ()

    def text(self, dialect: Dialect) -> tuple[str, Values]:
        """Its text in a dialect, and the values of parameters that are always the same."""
        text = self._texts.get(dialect.name)
        if text is None:
            compiled = self._clause.compile(dialect=_SQLITE if dialect.name == "sqlite" else dialect)
            constants = {name: value for name, value in compiled.params.items() if value is not None}
            text = self._texts[dialect.name] = (str(compiled), constants)
        return text

    def columns(self, description: Sequence[Sequence[Any]]) -> tuple[str, ...]:
        """Names of the columns of its rows; `description` is what a cursor says of them."""
        if not self._columns:
            self._columns = tuple(column[0] for column in description)
        return self._columns


class Session:
    """Runs statements on one connection, in its transaction."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._dialect = connection.dialect
        self._cursor: Any = connection.connection.cursor()

    def run(self, statement: Statement, values: Values) -> int:
        """Run a statement that answers nothing; returns how many rows it changed."""
        self._execute(statement, values)
        return int(self._cursor.rowcount)

    def run_many(self, statement: Statement, rows: Sequence[Values]) -> None:
        """Run a statement that answers nothing once for each of `rows`, in order."""
        if len(rows) == 1:
            self._execute(statement, rows[0])
        else:
            self._cursor.executemany(statement.text(self._dialect)[0], rows)

    def rows(self, statement: Statement, values: Values) -> list[Row]:
        """All rows of the answer."""
        self._execute(statement, values)
        found = self._cursor.fetchall()
        if not found:
            return []
        columns = statement.columns(self._cursor.description)
        return [dict(zip(columns, row, strict=True)) for row in found]

    def row(self, statement: Statement, values: Values) -> Row | None:
        """The only row of the answer, or None."""
        found = self.rows(statement, values)
        return found[0] if found else None

    def scalar(self, statement: Statement, values: Values) -> Any:
        """The only value of the only row, or None."""
        self._execute(statement, values)
        found = self._cursor.fetchall()
        return found[0][0] if found else None

    def select(self, query: Select[Any]) -> Sequence[Any]:
        """All rows of a query that was made for this call."""
        return self._connection.execute(query).mappings().all()

    def _execute(self, statement: Statement, values: Values) -> None:
        text, constants = statement.text(self._dialect)
        self._cursor.execute(text, values | constants if constants else values)
