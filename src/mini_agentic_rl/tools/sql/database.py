"""A database that agents may ask: each query runs in a process that can do no harm and is killed when it is late."""

from __future__ import annotations

import contextlib
import json
import logging
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from typing import Any, Final

from .limits import QueryLimits
from .result import QueryError, QueryResult, SqlToolError
from .schema import compact_schema, describe
from .statement import check_text

logger = logging.getLogger(__name__)

START_LIMIT: Final = 60.0
"""Seconds for the process to come up."""
GRACE: Final = 2.0
"""Seconds beyond its time limit until a query's process is killed: SQLite ends almost every query by itself."""


class SqlDatabase:
    """A SQLite file behind a process of its own, which is started by the first query and again after each death.

    Threads may share it; their queries take turns. Sent to another process, it starts a process of its own there.

    Args:
        path: the file.
        limits: bounds of one query.
        immutable: nobody changes the file while it is in use.
    """

    def __init__(self, path: str | Path, limits: QueryLimits | None = None, *, immutable: bool = False) -> None:
        self.path = Path(path)
        self.limits = limits or QueryLimits()
        self.immutable = immutable
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._ending: weakref.finalize[Any, Any] | None = None

    def query(self, sql: str) -> QueryResult:
        """The rows of one SELECT. Blocks for at most its time limit and `GRACE`, once its turn has come.

        Raises:
            QueryError: it is refused or fails; the text is for whoever wrote it.
            SqlToolError: the file is no database, or its process does not start.
        """
        check_text(sql, self.limits)
        with self._lock:
            if self._process is None or self._process.poll() is not None:
                self._start()
            reply = self._exchange(json.dumps(sql), self.limits.timeout_seconds + GRACE)
        if "error" in reply:
            raise QueryError(reply["error"])
        return QueryResult(
            tuple(reply["columns"]), tuple(map(tuple, reply["rows"])), reply["truncated"], frozenset(reply["tables"])
        )

    def answer(self, sql: str) -> str:
        """What a query gives, as text for a model: its rows, or "error: …"."""
        try:
            return self.query(sql).text()
        except QueryError as error:
            return f"error: {error}"

    def describe(self, table: str | None = None) -> str:
        """A table's definition and first rows, or the names of all tables."""
        return describe(self.path, table)

    def compact_schema(self, *leave_out: str) -> str:
        """One line a table, without those named."""
        return compact_schema(self.path, leave_out)

    def close(self) -> None:
        """End the process; the next query starts one again."""
        with self._lock:
            self._end()

    def __reduce__(self) -> tuple[Any, ...]:
        return _made, (self.path, self.limits, self.immutable)

    def _start(self) -> None:
        self._end()
        command = [sys.executable, "-m", f"{__package__}.worker", str(self.path), self.limits.model_dump_json()]
        self._process = subprocess.Popen(
            [*command, str(int(self.immutable))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )
        self._ending = weakref.finalize(self, _kill, self._process)
        reply = self._exchange(None, START_LIMIT)
        if "ready" not in reply:
            self._end()
            raise SqlToolError(reply["error"])

    def _end(self) -> None:
        if self._ending is not None:
            self._ending()
        self._process, self._ending = None, None

    def _exchange(self, line: str | None, limit: float) -> dict[str, Any]:
        """The reply to a line, or to none; an error where the process did not live to give one."""
        process = self._process
        if process is None or process.stdin is None or process.stdout is None:
            raise RuntimeError("the process of the database is not running")
        late = threading.Event()

        def stop() -> None:
            late.set()
            process.kill()

        timer = threading.Timer(limit, stop)
        timer.start()
        try:
            if line is not None:
                process.stdin.write(line + "\n")
                process.stdin.flush()
            reply = process.stdout.readline()
        except OSError:  # it died before it had read the line
            reply = ""
        finally:
            timer.cancel()
        if reply.endswith("\n"):
            found: dict[str, Any] = json.loads(reply)
            return found
        code = process.wait()
        if late.is_set():
            return {"error": f"the query took longer than {limit - GRACE:g} s; join on ids and add WHERE conditions"}
        logger.warning("the process of %s ended with status %d on %.200s", self.path, code, line)
        return {"error": "the query was too much for the database; write it in a simpler way"}


def _made(path: Path, limits: QueryLimits, immutable: bool) -> SqlDatabase:
    return SqlDatabase(path, limits, immutable=immutable)


def _kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with contextlib.suppress(OSError):  # what a dead process has not read is lost
                stream.close()
