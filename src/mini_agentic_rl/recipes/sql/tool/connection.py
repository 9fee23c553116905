"""A connection that can only read, within SQLite's limits and a time limit."""

from __future__ import annotations

import re
import sqlite3
import sys
import time
from pathlib import Path
from typing import Any, Final

from ..data import Cell, table_names
from .query import Authorizer, QueryError, QueryLimits, QueryResult, SqlToolError

# The first check is of the text: its size, its nesting and its first word. SQLite decides about the rest (see
# `Authorizer`); the messages are for the model that wrote the query.


_CONTROL: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff]")
_BEFORE_WORD: Final = re.compile(r"(?:[\s;]|--[^\n]*|/\*.*?\*/)*", re.DOTALL)
"""Spaces, semicolons and comments. It always matches and nothing follows it, so that it never backtracks."""
_WORD: Final = re.compile(r"[A-Za-z_]*")
_INSTEAD: Final = "the database can only be read; write one SELECT statement"


def check_text(sql: str, limits: QueryLimits) -> None:
    """Check the text, in time linear in its length.

    Raises:
        QueryError: it is empty, too long, nested too deeply, or has control characters.
    """
    if len(sql) > limits.max_characters:
        raise QueryError(f"the query has {len(sql)} characters, more than {limits.max_characters}; write a shorter one")
    if not sql.strip().strip(";").strip():
        raise QueryError("the query is empty; write one SELECT statement")
    if _CONTROL.search(sql):
        raise QueryError("the query holds control characters; write plain text")
    if _nesting(sql) > limits.max_nesting:
        raise QueryError(f"the query nests more than {limits.max_nesting} parentheses; write it in a simpler way")


def check_first_word(sql: str) -> None:
    """Allow SELECT and WITH.

    Raises:
        QueryError: the statement begins with another word.
    """
    before = _BEFORE_WORD.match(sql)
    match = _WORD.match(sql, before.end() if before else 0)
    word = match[0].upper()[:20] if match else ""
    if word not in ("SELECT", "WITH"):
        hint = "; call schema to see tables and columns" if word in ("PRAGMA", "EXPLAIN", "DESCRIBE", "SHOW") else ""
        raise QueryError(f"{word} is not allowed: {_INSTEAD}{hint}" if word else f"this is no query: {_INSTEAD}")


def _nesting(sql: str) -> int:
    """Return the depth of nested parentheses, including those in texts and comments."""
    deepest = depth = 0
    for character in sql:
        if character == "(":
            depth += 1
            deepest = max(deepest, depth)
        elif character == ")":
            depth -= 1
    return deepest


_LOOK_EVERY: Final = 1000
"""Instructions of SQLite's virtual machine between two checks of the time."""
PATIENCE: Final = 4.0
"""Wall-clock limit of a query, as a multiple of its limit of processor time."""

_EXPRESSION_DEPTH: Final = 64
_COMPOUND_SELECTS: Final = 16
_COLUMNS: Final = 200
_INSTRUCTIONS: Final = 50_000
_ARGUMENTS: Final = 32
_PATTERN_BYTES: Final = 100


class ReadOnlyConnection:
    """Runs queries on the SQLite file `path`. For one thread.

    Args:
        path: the file.
        limits: bounds of a query.
        immutable: nobody changes the file while it is open; SQLite then takes no locks and reads no journal.

    Raises:
        SqlToolError: the file does not exist or is no SQLite database.
    """

    def __init__(self, path: Path, limits: QueryLimits, *, immutable: bool = False) -> None:
        self._limits = limits
        self._deadline = self._latest = 0.0
        self.was_late = False
        """True if the latest query reached its time limit."""
        uri = f"{path.resolve().as_uri()}?mode=ro{'&immutable=1' if immutable else ''}"
        try:
            # The authorizer does not see cached statements again.
            self._connection = sqlite3.connect(uri, uri=True, isolation_level=None, cached_statements=0)
            self._connection.execute("PRAGMA query_only = ON")
            self._connection.execute("PRAGMA trusted_schema = OFF")
            self._connection.execute("PRAGMA temp_store = MEMORY")  # sorting writes no file
            self._authorizer = Authorizer(table_names(self._connection))
        except sqlite3.Error as error:
            raise SqlToolError(f"database {path} cannot be opened: {error}") from error
        self._connection.text_factory = lambda text: text.decode("utf-8", "replace")
        _set_limits(self._connection, limits)
        self._connection.set_authorizer(self._authorizer)
        self._connection.set_progress_handler(self._is_late, _LOOK_EVERY)

    def run(self, sql: str, seconds: float | None = None) -> QueryResult:
        """Return the rows of a query.

        Args:
            sql: the query.
            seconds: limit of processor time; None takes that of `limits`. On a busy machine the query may last
                `PATIENCE` times as long.

        Raises:
            QueryError: the query is refused or fails.
        """
        check_text(sql, self._limits)
        check_first_word(sql)
        self._authorizer.begin()
        self.was_late = False
        seconds = self._limits.timeout_seconds if seconds is None else seconds
        self._deadline, self._latest = time.process_time() + seconds, time.monotonic() + PATIENCE * seconds
        try:
            cursor = self._connection.execute(sql)
            try:
                columns = tuple(str(column[0]) for column in cursor.description or ())
                rows, truncated = self._fetch(cursor)
            finally:
                cursor.close()
        except MemoryError:
            raise QueryError("the query needs too much memory; join on ids and add WHERE conditions") from None
        except (sqlite3.Error, sqlite3.Warning, ValueError, OverflowError) as error:
            raise QueryError(self._explain(error)) from None
        return QueryResult(columns, rows, truncated, frozenset(self._authorizer.tables_read))

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def _fetch(self, cursor: sqlite3.Cursor) -> tuple[tuple[tuple[Cell, ...], ...], bool]:
        """Return rows up to the limits, and whether there are more."""
        rows: list[tuple[Cell, ...]] = []
        size = 0
        for values in cursor:
            row = tuple(map(_cell, values))
            size += sum(len(cell) if isinstance(cell, str) else 8 for cell in row)
            if len(rows) == self._limits.max_rows or (rows and size > self._limits.max_result_bytes):
                return tuple(rows), True
            rows.append(row)
        return tuple(rows), False

    def _is_late(self) -> int:
        self.was_late = time.process_time() > self._deadline or time.monotonic() > self._latest
        return int(self.was_late)

    def _explain(self, error: Exception) -> str:
        text = " ".join(str(error).split())
        if self._authorizer.refusal is not None:
            return self._authorizer.refusal
        if "interrupted" in text:
            return (
                f"the query took longer than {self._limits.timeout_seconds:g} s; join on ids and add WHERE conditions"
            )
        if text.startswith(("no such column", "no such table", "ambiguous column")):
            return f"{text}; call schema to see tables and columns"
        if "too big" in text or "pattern too complex" in text:
            return f"{text}; make shorter values"
        if "one statement" in text:
            return "these are several statements; send one SELECT statement at a time"
        if "variables" in text or "binding" in text:
            return "parameters are not allowed; write the value itself, as in name = 'Velovex'"
        if "syntax error" in text or text.startswith(("incomplete input", "unrecognized token")):
            return f"{text[-80:]}; write one SQLite SELECT statement"
        return "this is not allowed; read the tables of the database" if text == "not authorized" else text


def _cell(value: Any) -> Cell:
    return f"<{len(value)} bytes>" if isinstance(value, bytes) else value


def _set_limits(connection: sqlite3.Connection, limits: QueryLimits) -> None:
    """Set SQLite's limits, from Python 3.11 on."""
    if sys.version_info >= (3, 11):
        for name, value in (
            (sqlite3.SQLITE_LIMIT_LENGTH, limits.max_value_bytes),
            (sqlite3.SQLITE_LIMIT_SQL_LENGTH, 4 * limits.max_characters),
            (sqlite3.SQLITE_LIMIT_COLUMN, _COLUMNS),
            (sqlite3.SQLITE_LIMIT_EXPR_DEPTH, _EXPRESSION_DEPTH),
            (sqlite3.SQLITE_LIMIT_COMPOUND_SELECT, _COMPOUND_SELECTS),
            (sqlite3.SQLITE_LIMIT_VDBE_OP, _INSTRUCTIONS),
            (sqlite3.SQLITE_LIMIT_FUNCTION_ARG, _ARGUMENTS),
            (sqlite3.SQLITE_LIMIT_ATTACHED, 0),
            (sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, _PATTERN_BYTES),
            (sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, 0),
            (sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH, 0),
            (sqlite3.SQLITE_LIMIT_WORKER_THREADS, 0),
        ):
            connection.setlimit(name, value)
