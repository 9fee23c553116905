"""A database for agents: each query runs in a restricted process, which is killed when the query is late.

The file is trusted, queries are not; the schema is read in this process.
"""

from __future__ import annotations

import json
import logging
import queue
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

from ....processes import DeadlineProcess, EndedError, LateError, NotReadyError
from .connection import (
    PATIENCE,
    QueryError,
    QueryLimits,
    QueryResult,
    SqlToolError,
    check_text,
    quoted,
    schema_text,
    table_names,
)

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

logger = logging.getLogger(__name__)

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
