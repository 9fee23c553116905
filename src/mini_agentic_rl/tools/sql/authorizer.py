"""The second gate: what SQLite is about to do while it compiles a query, asked one action at a time."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection

from .functions import ALLOWED_FUNCTIONS


class Authorizer:
    """Allows SELECT, reading of `tables`, and the functions of `ALLOWED_FUNCTIONS`; denies everything else.

    `refusal` is why the query under way was denied, in words for its author; `tables_read` are the tables that it
    reads.
    """

    def __init__(self, tables: Collection[str]) -> None:
        self._tables = {table.lower(): table for table in tables}
        self.refusal: str | None = None
        self.tables_read: set[str] = set()

    def begin(self) -> None:
        """A new query comes."""
        self.refusal = None
        self.tables_read = set()

    def __call__(
        self, action: int, first: str | None, second: str | None, database: str | None, source: str | None
    ) -> int:
        refusal = self._refusal(action, first or "", second or "", database)
        if refusal is None:
            return sqlite3.SQLITE_OK
        self.refusal = self.refusal or refusal
        return sqlite3.SQLITE_DENY

    def _refusal(self, action: int, first: str, second: str, database: str | None) -> str | None:
        if action == sqlite3.SQLITE_SELECT:
            return None
        if action == sqlite3.SQLITE_READ:
            table = self._tables.get(first.lower())
            if table is None or database not in (None, "main"):
                return f"table {first} cannot be read; there are {', '.join(sorted(self._tables.values()))}"
            self.tables_read.add(table)
            return None
        if action == sqlite3.SQLITE_FUNCTION:
            if second.lower() in ALLOWED_FUNCTIONS:
                return None
            return f"function {second} is not allowed; use plain columns, comparisons, COUNT, SUM, AVG, MIN and MAX"
        if action == sqlite3.SQLITE_RECURSIVE:
            return "recursive WITH is not allowed; use joins"
        return "this is not allowed: the database can only be read; write one SELECT statement"
