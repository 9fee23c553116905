"""What comes of a query: rows, or one line that says what to do instead."""

from __future__ import annotations

from dataclasses import dataclass

from ...datasets.sql import Cell, rows_text
from ...errors import UserError

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
    """Whether rows are left out."""
    tables: frozenset[str] = frozenset()
    """The tables that were read."""

    def text(self, max_characters: int = MAX_TEXT) -> str:
        """One row a line, for a model to read."""
        if not self.rows:
            return "no rows"
        text = rows_text(self.rows)
        if len(text) > max_characters:
            text = f"{text[:max_characters].rpartition(chr(10))[0] or text[:max_characters]}\n[more rows: narrow it]"
        elif self.truncated:
            text = f"{text}\n[more rows: narrow it]"
        return text
