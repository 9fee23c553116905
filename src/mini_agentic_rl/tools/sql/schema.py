"""What a database holds, for a model to read. The file itself is trusted; only queries are not."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ...datasets.sql import quoted, schema_text, table_names
from .result import SqlToolError

_SAMPLES = 3


def compact_schema(path: Path, leave_out: Sequence[str] = ()) -> str:
    """One line a table, as in `drug(id,name,price)`.

    Raises:
        SqlToolError: there is no such file, or it is no SQLite database.
    """
    with _opened(path) as connection:
        return schema_text(connection, leave_out)


def describe(path: Path, table: str | None = None) -> str:
    """How a table was made, its comments included, and its first rows; without a table, those there are.

    Raises:
        SqlToolError: there is no such file, or it is no SQLite database.
    """
    with _opened(path) as connection:
        names = table_names(connection)
        if table is None:
            return f"tables: {', '.join(names)}"
        known = {name.lower(): name for name in names}
        name = known.get(table.strip().lower())
        if name is None:
            return f"error: there is no table {table[:40]}; there are {', '.join(names)}"
        (made,) = connection.execute("SELECT sql FROM sqlite_master WHERE name = ?", (name,)).fetchone()
        rows = connection.execute(f"SELECT * FROM {quoted(name)} LIMIT {_SAMPLES}").fetchall()
        return "\n".join([str(made), "First rows:", *(" | ".join(map(str, row)) for row in rows)])


@contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    """A read-only connection that is closed at the end of the block."""
    try:
        connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)
    except sqlite3.Error as error:
        raise SqlToolError(f"database {path} cannot be opened: {error}") from error
    try:
        yield connection
    except sqlite3.DatabaseError as error:
        raise SqlToolError(f"database {path} cannot be read: {error}") from error
    finally:
        connection.close()
