"""Limits of a query, its result, its errors, and the SQLite authorizer."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from pydantic import Field

from ....config import Settings
from ....errors import UserError
from ..data import Cell, rows_text


class QueryLimits(Settings):
    """Bounds of one query. On Python 3.10, whose sqlite3 cannot set SQLite's limits, only the process's memory bounds
    the length of a value; without Linux, only the time bounds that memory."""

    max_characters: int = Field(default=2000, ge=1)
    """Characters of the query's text."""
    max_nesting: int = Field(default=24, ge=1)
    """Parentheses within parentheses."""
    timeout_seconds: float = Field(default=1.0, gt=0)
    """Seconds of processor time; on a busy machine a query may last four times as long."""
    max_rows: int = Field(default=200, ge=1)
    """Maximum number of rows; the result says if more are left out."""
    max_result_bytes: int = Field(default=65_536, ge=1)
    """Approximate maximum bytes of values; the result says if more are left out."""
    max_value_bytes: int = Field(default=16_384, ge=1024)
    """Bytes of any value, intermediate values included."""
    max_memory_mib: int = Field(default=256, ge=16)
    """Memory in MiB that the process of the database may take for its queries (Linux)."""


MAX_TEXT = 1200
"""Characters of a result that a model sees."""


class QueryError(Exception):
    """A query was refused or failed; the message tells the agent what to write instead."""


class SqlToolError(UserError):
    """A database that cannot be opened or served."""


@dataclass(frozen=True)
class QueryResult:
    """The rows of a query."""

    columns: tuple[str, ...]
    """Names of the columns."""
    rows: tuple[tuple[Cell, ...], ...]
    """The rows, in their order."""
    truncated: bool = False
    """True if rows are left out."""
    tables: frozenset[str] = frozenset()
    """The tables that were read."""

    def text(self, max_characters: int = MAX_TEXT) -> str:
        """Return the result as text for a model, one row per line."""
        if not self.rows:
            return "no rows"
        text = rows_text(self.rows)
        if len(text) > max_characters:
            text = f"{text[:max_characters].rpartition(chr(10))[0] or text[:max_characters]}\n[more rows: narrow it]"
        elif self.truncated:
            text = f"{text}\n[more rows: narrow it]"
        return text


# SQLite calls the authorizer for each action while it compiles a query.
#
# Allowed functions compute values of about the size of their arguments. Not allowed are functions that load code or
# files (`load_extension`), create long values (`printf`, `zeroblob`, `randomblob`, `hex`, `char`, `json_…`), are random
# (`random`), or return facts about the connection.


_TEXT: Final = "coalesce glob ifnull iif instr length like lower ltrim nullif replace rtrim substr substring trim upper"
_NUMBERS: Final = "abs ceil ceiling exp floor ln log log10 log2 mod pow power round sign sqrt trunc typeof"
_AGGREGATES: Final = "avg count group_concat max min sum total"
_WINDOWS: Final = "cume_dist dense_rank first_value lag last_value lead nth_value ntile percent_rank rank row_number"
_DATES: Final = "date datetime julianday strftime time unixepoch"

ALLOWED_FUNCTIONS: Final = frozenset(" ".join((_TEXT, _NUMBERS, _AGGREGATES, _WINDOWS, _DATES)).split())
"""Names in lower case. The operators LIKE and GLOB are functions to SQLite."""


class Authorizer:
    """Allows SELECT, reading of `tables`, and the functions of `ALLOWED_FUNCTIONS`; denies everything else.

    `refusal` is the reason why the current query was denied, as a message for the model; `tables_read` are its tables.
    """

    def __init__(self, tables: Collection[str]) -> None:
        self._tables = {table.lower(): table for table in tables}
        self.refusal: str | None = None
        self.tables_read: set[str] = set()

    def begin(self) -> None:
        """Begin a new query."""
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
