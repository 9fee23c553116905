"""SQL for agents that can only read: one SELECT in, its rows or one readable line out.

| check | refuses |
|---|---|
| `check_text` | texts that are too long or nested too deeply, statements other than SELECT |
| `Authorizer` | tables, functions and actions that are not on the list, as SQLite compiles the query |
| `ReadOnlyConnection` | writing (read-only, immutable), several statements, long values, many rows, long work |
| `worker` | a process that may write no file, uses bounded memory, and is killed when it is late |

`SqlDatabase` is what agents use: each query runs in a restricted process. The file is trusted, queries are not; the
schema is read in this process. The prompts are in `recipes.sql.data`.
"""

from __future__ import annotations

import json
import logging
import queue
import re
import sqlite3
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

from ...errors import UserError
from ...processes import DeadlineProcess, EndedError, LateError, NotReadyError

logger = logging.getLogger(__name__)

Cell: TypeAlias = int | float | str | None
"""A value of a result. SQLite's bytes are represented by a text with their number."""
MAX_TEXT = 1200
"""Characters of a result that a model sees."""


@dataclass(frozen=True)
class QueryLimits:
    """Bounds of one query. On Python 3.10, whose sqlite3 cannot set SQLite's limits, only the process's memory bounds
    the length of a value; without Linux, only the time bounds that memory.

    Raises:
        UserError: a bound is too small.
    """

    max_characters: int = 2000
    """Characters of the query's text."""
    max_nesting: int = 24
    """Parentheses within parentheses."""
    timeout_seconds: float = 1.0
    """Seconds of processor time; on a busy machine a query may last four times as long."""
    max_rows: int = 200
    """Maximum number of rows; the result says if more are left out."""
    max_result_bytes: int = 65_536
    """Approximate maximum bytes of values; the result says if more are left out."""
    max_value_bytes: int = 16_384
    """Bytes of any value, intermediate values included; 1024 or more."""
    max_memory_mib: int = 256
    """Memory in MiB that the process of the database may take for its queries (Linux); 16 or more."""

    def __post_init__(self) -> None:
        least = {"max_value_bytes": 1024, "max_memory_mib": 16, "timeout_seconds": 1e-3}
        for name, value in vars(self).items():
            if value < least.get(name, 1):
                raise UserError(f"{value} is too small: {least.get(name, 1):g} or more", setting=name)


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


def rows_text(rows: Sequence[Sequence[Cell]]) -> str:
    """Return one line per row, with " | " between values."""
    return "\n".join(" | ".join(map(cell_text, row)) for row in rows)


def cell_text(cell: Cell) -> str:
    """Return a value as text: NULL, a number with at most ten digits, or the text itself."""
    if cell is None:
        return "NULL"
    return f"{cell:.10g}" if isinstance(cell, float) else str(cell)


def table_names(connection: sqlite3.Connection) -> list[str]:
    """Return the tables and views in the order of creation, without those of SQLite."""
    rows = connection.execute(
        "SELECT name FROM sqlite_master WHERE type IN ('table', 'view') AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' "
        "ORDER BY rowid"
    )
    return [str(name) for (name,) in rows]


def quoted(name: str) -> str:
    """Return a name quoted for SQLite."""
    return '"' + name.replace('"', '""') + '"'


def schema_text(connection: sqlite3.Connection, leave_out: Collection[str] = ()) -> str:
    """Return one line per table, such as `drug(id,name,price)`."""
    lines = []
    for table in table_names(connection):
        if table not in leave_out:
            columns = connection.execute(f"PRAGMA table_info({quoted(table)})")
            lines.append(f"{table}({','.join(str(column[1]) for column in columns)})")
    return "\n".join(lines)


_CONTROL: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff]")
_BEFORE_WORD: Final = re.compile(r"(?:[\s;]|--[^\n]*|/\*.*?\*/)*", re.DOTALL)
"""Spaces, semicolons and comments. It always matches and nothing follows it, so that it never backtracks."""
_WORD: Final = re.compile(r"[A-Za-z_]*")
_INSTEAD: Final = "the database can only be read; write one SELECT statement"


def check_text(sql: str, limits: QueryLimits) -> None:
    """Check the size, the nesting and the first word of a query, in time linear in its length. SQLite decides about the
    rest (see `Authorizer`).

    Raises:
        QueryError: it is empty, too long, nested too deeply, has control characters, or is not a SELECT or WITH.
    """
    if len(sql) > limits.max_characters:
        raise QueryError(f"the query has {len(sql)} characters, more than {limits.max_characters}; write a shorter one")
    if not sql.strip().strip(";").strip():
        raise QueryError("the query is empty; write one SELECT statement")
    if _CONTROL.search(sql):
        raise QueryError("the query holds control characters; write plain text")
    deepest = depth = 0
    for character in sql:  # parentheses in texts and comments count as well
        if character == "(":
            depth += 1
            deepest = max(deepest, depth)
        elif character == ")":
            depth -= 1
    if deepest > limits.max_nesting:
        raise QueryError(f"the query nests more than {limits.max_nesting} parentheses; write it in a simpler way")
    before = _BEFORE_WORD.match(sql)
    match = _WORD.match(sql, before.end() if before else 0)
    word = match[0].upper()[:20] if match else ""
    if word not in ("SELECT", "WITH"):
        hint = "; call schema to see tables and columns" if word in ("PRAGMA", "EXPLAIN", "DESCRIBE", "SHOW") else ""
        raise QueryError(f"{word} is not allowed: {_INSTEAD}{hint}" if word else f"this is no query: {_INSTEAD}")


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
            if table is None and not second and not first.lower().startswith("sqlite_"):
                return None  # count(*) of a WITH; of a virtual table SQLite asks for more
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
        return f"this is not allowed: {_INSTEAD}"


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

    def run(self, sql: str, seconds: float) -> QueryResult:
        """Return the rows of a query.

        Args:
            sql: a query that `check_text` allows.
            seconds: limit of processor time. On a busy machine the query may last `PATIENCE` times as long.

        Raises:
            QueryError: the query is refused or fails.
        """
        self._authorizer.refusal, self._authorizer.tables_read = None, set()
        self.was_late = False
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

    def _fetch(self, cursor: sqlite3.Cursor) -> tuple[tuple[tuple[Cell, ...], ...], bool]:
        """Return rows up to the limits, and whether there are more."""
        rows: list[tuple[Cell, ...]] = []
        size = 0
        for values in cursor:
            row = tuple(f"<{len(value)} bytes>" if isinstance(value, bytes) else value for value in values)
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


# Two pools of worker processes, so that slow queries delay slow queries only.
#
# Every query first runs briefly in the quick pool. A slower one is run again in the slow pool with its whole time
# limit, which costs it a tenth of a second.

QUICK_SECONDS: Final = 0.05
"""Processor time limit of a query in the quick pool, in seconds."""
SLOW_NICENESS: Final = 5
"""Niceness of the slow pool's processes."""
QUICK: Final = 2
SLOW: Final = 4
"""Processes of each pool; each starts with its first query."""

Pool: TypeAlias = queue.LifoQueue[DeadlineProcess]
"""Idle processes; the one used last is used next."""

_SAMPLES: Final = 3
"""Rows of a table that `describe` shows."""


GRACE: Final = 2.0
"""Seconds beyond its time limit until a query's process is killed. SQLite ends almost every query by itself."""
MOST_WAIT: Final = 60.0
"""Seconds that a query waits for a process."""


class SqlDatabase:
    """A SQLite file that worker processes query. The first query starts a worker; a dead one is replaced.

    Thread-safe: slow queries delay only slow ones. After unpickling in another process it starts workers there.

    Args:
        path: the file.
        limits: bounds of one query.
        immutable: nobody changes the file while it is in use.
    """

    def __init__(self, path: str | Path, limits: QueryLimits | None = None, *, immutable: bool = False) -> None:
        self.path = Path(path)
        self.limits = limits or QueryLimits()
        self.immutable = immutable
        self._processes: list[DeadlineProcess] = []
        self._quick = self._pool(QUICK, 0)
        self._slow = self._pool(SLOW, SLOW_NICENESS)

    def query(self, sql: str) -> QueryResult:
        """Return the rows of one SELECT. Blocks for at most `MOST_WAIT` for a process, and then for `PATIENCE` times
        its time limit and `GRACE`.

        Raises:
            QueryError: it is refused or fails, or no process became free; the message is for the model.
            SqlToolError: the file is no database, or its process does not start.
        """
        check_text(sql, self.limits)
        limit = self.limits.timeout_seconds
        reply = self._ask(self._quick, sql, min(limit, QUICK_SECONDS))
        if reply.get("late") and limit > QUICK_SECONDS:
            reply = self._ask(self._slow, sql, limit)
        if "error" in reply:
            raise QueryError(reply["error"])
        return QueryResult(
            tuple(reply["columns"]), tuple(map(tuple, reply["rows"])), reply["truncated"], frozenset(reply["tables"])
        )

    def _pool(self, size: int, niceness: int) -> Pool:
        pool: Pool = queue.LifoQueue()
        arguments = (str(self.path), json.dumps(asdict(self.limits)), str(int(self.immutable)), str(niceness))
        for _ in range(size):
            process = DeadlineProcess(f"{__package__}.worker", *arguments)
            self._processes.append(process)
            pool.put(process)
        return pool

    def _ask(self, pool: Pool, sql: str, seconds: float) -> dict[str, Any]:
        limit = self.limits.timeout_seconds
        try:
            process = pool.get(timeout=MOST_WAIT)
        except queue.Empty:
            raise QueryError("the database is busy with the queries of others; ask again") from None
        try:
            # A query that SQLite cannot interrupt in the quick pool would be late in the slow one, too.
            reply: dict[str, Any] = process.ask({"sql": sql, "seconds": seconds}, PATIENCE * seconds + GRACE)
        except NotReadyError as error:
            raise SqlToolError(str(error)) from error
        except LateError:
            raise QueryError(f"the query took longer than {limit:g} s; join on ids and add WHERE conditions") from None
        except EndedError as error:
            logger.warning("%s: %s on %.200s", self.path, error, sql)
            raise QueryError("the query was too much for the database; write it in a simpler way") from None
        finally:
            pool.put(process)
        return reply

    def describe(self, table: str | None = None) -> str:
        """Return a table's definition and first rows; without a table, the names of all.

        Raises:
            SqlToolError: the file does not exist or is no SQLite database.
        """
        with self._opened() as connection:
            names = table_names(connection)
            if table is None:
                return f"tables: {', '.join(names)}"
            name = next((name for name in names if name.lower() == table.strip().lower()), None)
            if name is None:
                return f"error: there is no table {table[:40]}; there are {', '.join(names)}"
            (made,) = connection.execute("SELECT sql FROM sqlite_master WHERE name = ?", (name,)).fetchone()
            rows = connection.execute(f"SELECT * FROM {quoted(name)} LIMIT {_SAMPLES}").fetchall()
        return "\n".join([str(made), "First rows:", *(" | ".join(map(str, row)) for row in rows)])

    def compact_schema(self, *leave_out: str) -> str:
        """Return one line per table, such as `drug(id,name,price)`, without the tables `leave_out`.

        Raises:
            SqlToolError: the file does not exist or is no SQLite database.
        """
        with self._opened() as connection:
            return schema_text(connection, leave_out)

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        """Yield a read-only connection that is closed at the end of the block."""
        try:
            connection = sqlite3.connect(f"{self.path.resolve().as_uri()}?mode=ro", uri=True)
        except sqlite3.Error as error:
            raise SqlToolError(f"database {self.path} cannot be opened: {error}") from error
        try:
            yield connection
        except sqlite3.DatabaseError as error:
            raise SqlToolError(f"database {self.path} cannot be read: {error}") from error
        finally:
            connection.close()

    def close(self) -> None:
        """End the processes; the next query starts one again."""
        for process in self._processes:
            process.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(SqlDatabase, immutable=self.immutable), (self.path, self.limits)
