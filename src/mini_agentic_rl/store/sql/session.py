"""Statements in the transaction of a connection, on either driver: SQLite's SQL, translated for PostgreSQL."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Literal, TypeAlias

from ..tables import Row, Values

Dialect: TypeAlias = Literal["sqlite", "postgresql"]


@lru_cache(maxsize=1024)
def in_postgres(sql: str) -> str:
    """Translate a statement of this package from SQLite's SQL: two functions, and the form of parameters."""
    sql = re.sub(r"json_each\((:\w+)\)", r"json_array_elements_text(CAST(\1 AS json))", sql)
    return re.sub(r":(\w+)", r"%(\1)s", sql.replace("instr(", "strpos("))


class Session:
    """Runs statements in the transaction of a connection of either driver."""

    def __init__(self, connection: Any, dialect: Dialect) -> None:
        self.dialect = dialect
        self._cursor = connection.cursor()

    def run(self, sql: str, values: Values | None = None) -> int:
        """Run a statement that returns no rows, and return how many rows it changed."""
        self._cursor.execute(self._translated(sql), values or {})
        return int(self._cursor.rowcount)

    def run_many(self, sql: str, rows: Sequence[Values]) -> None:
        """Run a statement that returns no rows once for each of `rows`, in order."""
        if len(rows) == 1:
            self._cursor.execute(self._translated(sql), rows[0])
        elif rows:
            self._cursor.executemany(self._translated(sql), rows)

    def rows(self, sql: str, values: Values | None = None) -> list[Row]:
        """Return all rows of the answer."""
        self._cursor.execute(self._translated(sql), values or {})
        rows = self._cursor.fetchall()
        if not rows:
            return []
        names = [column[0] for column in self._cursor.description]
        return [dict(zip(names, row, strict=True)) for row in rows]

    def row(self, sql: str, values: Values | None = None) -> Row | None:
        """Return the only row of the answer, or None."""
        rows = self.rows(sql, values)
        return rows[0] if rows else None

    def scalar(self, sql: str, values: Values | None = None) -> Any:
        """Return the only value of the only row, or None."""
        self._cursor.execute(self._translated(sql), values or {})
        rows = self._cursor.fetchall()
        return rows[0][0] if rows else None

    def tables(self) -> set[str]:
        """Return the names of the tables in the database."""
        if self.dialect == "sqlite":
            names = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%'"
        else:
            names = "SELECT tablename AS name FROM pg_tables WHERE schemaname = current_schema()"
        return {row["name"] for row in self.rows(names)}

    def _translated(self, sql: str) -> str:
        return sql if self.dialect == "sqlite" else in_postgres(sql)
