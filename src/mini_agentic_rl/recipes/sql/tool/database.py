"""A database for agents: each query runs in a restricted process, which is killed when the query is late.

The file itself is trusted, queries are not; the schema is read without such a process.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from ....processes import DeadlineProcess, DeadlineProcessError, EndedError, LateError, NotReadyError
from ..data import quoted, schema_text, table_names
from .connection import PATIENCE, check_text
from .query import QueryError, QueryLimits, QueryResult, SqlToolError

# Two lanes of worker processes, so that slow queries delay slow queries only.
#
# Every query first runs briefly in the quick lane. A slower one is restarted in the slow lane with its whole time
# limit, which costs it a tenth of a second. No query waits for a process to start while another one is up.

QUICK_SECONDS: Final = 0.05
"""Processor time limit of a query in the quick lane, in seconds."""
SLOW_NICENESS: Final = 5
"""Niceness of the slow lane's processes."""
QUICK: Final = 2
SLOW: Final = 4
"""Processes of each lane, at most; one is started when all others are busy."""


class BusyError(RuntimeError):
    """No process became free in time."""


class Lane:
    """A pool of up to `most` processes. The one used last is used next, and callers are served in order of arrival.

    The first process is started by the first query. Others, and replacements of dead ones, start in the background
    while the running ones are used.

    Args:
        make: creates a process that is not started yet.
        most: number of processes, at most.
    """

    def __init__(self, make: Callable[[], DeadlineProcess], most: int) -> None:
        self._make = make
        self._most = most
        self._all: list[DeadlineProcess] = []
        self._idle: list[DeadlineProcess] = []
        self._starting = 0
        self._turns: deque[object] = deque()
        self._changed = threading.Condition()

    @contextmanager
    def process(self, within_seconds: float) -> Iterator[DeadlineProcess]:
        """Reserve a process for the block.

        Raises:
            BusyError: none became free within this time.
        """
        taken = self._taken(time.monotonic() + within_seconds)
        try:
            yield taken
        finally:
            with self._changed:
                if len(self._all) == 1 or taken.is_up:
                    self._idle.append(taken)
                else:
                    self._start_aside(taken)
                self._changed.notify_all()

    def close(self) -> None:
        """End all processes; the next query starts one again."""
        with self._changed:
            processes = list(self._all)
        for process in processes:
            process.close()

    def _taken(self, end: float) -> DeadlineProcess:
        turn = object()
        with self._changed:
            self._turns.append(turn)
            try:
                while self._turns[0] is not turn or not self._idle:
                    if self._turns[0] is turn and not self._starting and len(self._all) < self._most:
                        self._all.append(self._make())
                        if len(self._all) == 1:
                            return self._all[0]
                        self._start_aside(self._all[-1])
                    left = end - time.monotonic()
                    if left <= 0:
                        raise BusyError
                    self._changed.wait(left)
                return self._idle.pop()
            finally:
                self._turns.remove(turn)
                self._changed.notify_all()

    def _start_aside(self, process: DeadlineProcess) -> None:
        """Start a process in its own thread; the caller holds the lock."""
        self._starting += 1
        threading.Thread(target=self._start, args=(process,), name="sql-process", daemon=True).start()

    def _start(self, process: DeadlineProcess) -> None:
        try:
            with contextlib.suppress(DeadlineProcessError):  # the next query reports the reason
                process.start()
        finally:
            with self._changed:
                self._starting -= 1
                self._idle.append(process)
                self._changed.notify_all()


logger = logging.getLogger(__name__)

_SAMPLES: Final = 3
"""Rows of a table that `describe` shows."""


GRACE: Final = 2.0
"""Seconds beyond its time limit until a query's process is killed: SQLite ends almost every query by itself."""
MOST_WAIT: Final = 60.0
"""Seconds that a query waits for its turn."""


class SqlDatabase:
    """A SQLite file that worker processes query. The first query starts a worker; a dead one is replaced.

    Thread-safe: a slow query delays only slow ones (see `Lane`). After unpickling in another process it starts workers
    there.

    Args:
        path: the file.
        limits: bounds of one query.
        immutable: nobody changes the file while it is in use.
    """

    def __init__(self, path: str | Path, limits: QueryLimits | None = None, *, immutable: bool = False) -> None:
        self.path = Path(path)
        self.limits = limits or QueryLimits()
        self.immutable = immutable
        arguments = (f"{__package__}.worker", str(self.path), self.limits.model_dump_json(), str(int(immutable)))
        self._quick = Lane(partial(DeadlineProcess, *arguments, "0"), QUICK)
        self._slow = Lane(partial(DeadlineProcess, *arguments, str(SLOW_NICENESS)), SLOW)

    def query(self, sql: str) -> QueryResult:
        """Return the rows of one SELECT. Blocks for at most `PATIENCE` times its time limit and `GRACE`, once its turn
        has come; for a turn, at most `MOST_WAIT`.

        Raises:
            QueryError: it is refused or fails, or its turn did not come; the text is for whoever wrote it.
            SqlToolError: the file is no database, or its process does not start.
        """
        check_text(sql, self.limits)
        limit = self.limits.timeout_seconds
        reply = self._asked(self._quick, sql, min(limit, QUICK_SECONDS))
        if reply.get("late") and limit > QUICK_SECONDS:
            reply = self._asked(self._slow, sql, limit)
        if "error" in reply:
            raise QueryError(reply["error"])
        return QueryResult(
            tuple(reply["columns"]), tuple(map(tuple, reply["rows"])), reply["truncated"], frozenset(reply["tables"])
        )

    def _asked(self, lane: Lane, sql: str, seconds: float) -> dict[str, Any]:
        limit = self.limits.timeout_seconds
        try:
            with lane.process(MOST_WAIT) as process:
                # A query in the quick lane that does not look at the clock is late in the end, wherever it runs.
                reply: dict[str, Any] = process.ask({"sql": sql, "seconds": seconds}, PATIENCE * seconds + GRACE)
        except BusyError:
            raise QueryError("the database is busy with the queries of others; ask again") from None
        except NotReadyError as error:
            raise SqlToolError(str(error)) from error
        except LateError:
            raise QueryError(f"the query took longer than {limit:g} s; join on ids and add WHERE conditions") from None
        except EndedError as error:
            logger.warning("%s: %s on %.200s", self.path, error, sql)
            raise QueryError("the query was too much for the database; write it in a simpler way") from None
        return reply

    def describe(self, table: str | None = None) -> str:
        """Return a table's definition and first rows; without a table, the names of all.

        Raises:
            SqlToolError: there is no such file, or it is no SQLite database.
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
            SqlToolError: there is no such file, or it is no SQLite database.
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
        self._quick.close()
        self._slow.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return _made, (self.path, self.limits, self.immutable)


def _made(path: Path, limits: QueryLimits, immutable: bool) -> SqlDatabase:
    return SqlDatabase(path, limits, immutable=immutable)
