"""The second gate: what SQLite is about to do while it compiles a query, asked one action at a time.

A query may call functions that only compute, from what a table holds, something of its size. Not among them: what loads
code or files (`load_extension`), what makes long values out of nothing (`printf`, `zeroblob`, `randomblob`, `hex`,
`char`, `json_…`), chance (`random`), and what tells of the connection.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection
from typing import Final

_TEXT: Final = "coalesce glob ifnull iif instr length like lower ltrim nullif replace rtrim substr substring trim upper"
_NUMBERS: Final = "abs ceil ceiling exp floor ln log log10 log2 mod pow power round sign sqrt trunc typeof"
_AGGREGATES: Final = "avg count group_concat max min sum total"
_WINDOWS: Final = "cume_dist dense_rank first_value lag last_value lead nth_value ntile percent_rank rank row_number"
_DATES: Final = "date datetime julianday strftime time unixepoch"

ALLOWED_FUNCTIONS: Final = frozenset(" ".join((_TEXT, _NUMBERS, _AGGREGATES, _WINDOWS, _DATES)).split())
"""Names in lower case. The operators LIKE and GLOB are functions to SQLite."""


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
