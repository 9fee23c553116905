"""One query: how much it may be, and what comes of it: rows, or one line that says what to do instead."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import Field

from ....config import Settings
from ....errors import UserError
from ..data import Cell, rows_text


class QueryLimits(Settings):
    """Bounds of one query. On Python 3.10, whose sqlite3 cannot set SQLite's limits, the length of a value is bounded
    by the memory of the process alone; where there is no Linux, that memory is bounded by the time alone."""

    max_characters: int = Field(default=2000, ge=1)
    """Characters of the query's text."""
    max_nesting: int = Field(default=24, ge=1)
    """Parentheses within parentheses."""
    timeout_seconds: float = Field(default=1.0, gt=0)
    """Seconds of processor time that it may take; where others have the processor, it may last four times as long."""
    max_rows: int = Field(default=200, ge=1)
    """Rows that are returned; the rest is left out, and the result says so."""
    max_result_bytes: int = Field(default=65_536, ge=1)
    """About so many bytes of values are returned; the rest is left out, and the result says so."""
    max_value_bytes: int = Field(default=16_384, ge=1024)
    """Bytes of any one value, also of those that are computed on the way."""
    max_memory_mib: int = Field(default=256, ge=16)
    """Memory in MiB that the process of the database may take for its queries (Linux)."""


MAX_TEXT = 1200
"""Characters of a result that a model gets to read."""


class QueryError(Exception):
    """A query that was refused or failed; the text is for the agent that wrote it and says what to do instead."""


class SqlToolError(UserError):
    """A database that cannot be opened or served."""


@dataclass(frozen=True)
class QueryResult:
    """The rows of a query."""

    columns: tuple[str, ...]
    """Names of the columns."""
    rows: tuple[tuple[Cell, ...], ...]
    """The rows, in the order in which they came."""
    truncated: bool = False
    """True if rows are left out."""
    tables: frozenset[str] = frozenset()
    """The tables that were read."""

    def text(self, max_characters: int = MAX_TEXT) -> str:
        """Return one row a line, for a model to read."""
        if not self.rows:
            return "no rows"
        text = rows_text(self.rows)
        if len(text) > max_characters:
            text = f"{text[:max_characters].rpartition(chr(10))[0] or text[:max_characters]}\n[more rows: narrow it]"
        elif self.truncated:
            text = f"{text}\n[more rows: narrow it]"
        return text
