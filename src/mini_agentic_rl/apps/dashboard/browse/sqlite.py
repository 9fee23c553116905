"""A store in a SQLite file, read a page at a time by the order in which rollouts were stored (keyset paging).

Connections only read, and readers do not hold up the training that writes: the file is in WAL mode. A request looks at
a bounded number of rollouts, so that it takes as long in a store of a million as in one of a thousand; where a filter
passes few, the page comes back short, and its cursor says where to go on.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, TypeVar

from ....errors import UserError
from ....store.sql import SAME_TABLES_SINCE, SCHEMA_VERSION
from ....types import Attempt, ResourcesUpdate, Rollout, Span, Worker
from . import sqlite_rows as read
from .base import MAX_GROUP, MAX_RESOURCES, MAX_SPANS, GroupRow, RolloutFilter, RolloutPage, RolloutRow
from .sqlite_rows import StoreFacts

T = TypeVar("T")

_THREADS: Final = 3
_SECONDS: Final = 0.03
"""Seconds after which a search that finds too little comes back with what it has."""
_LOOKED_AT: Final = 2000
_LOOKED_AT_IN_SPANS: Final = 100
"""Rollouts that one statement looks at; fewer where their spans are searched."""


class SqliteBrowser:
    """Reads of the store in a SQLite file, which need not be there yet, and may be replaced by another.

    Args:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        """Of what is looked up; made when somebody looks, so that a process killed before leaves nothing behind."""
        self._pool = ThreadPoolExecutor(_THREADS, "dashboard")
        self._local = threading.local()
        self._lock = threading.Lock()
        self._facts: tuple[int, StoreFacts] | None = None
        self._connections: list[sqlite3.Connection] = []

    async def totals(self) -> Mapping[str, Any]:
        def work(connection: sqlite3.Connection) -> dict[str, Any]:
            status = dict(connection.execute("SELECT status, count(*) FROM agl_rollouts GROUP BY status").fetchall())
            spans = connection.execute("SELECT max(number) FROM agl_spans").fetchone()[0] or 0
            return {"status": status, "rollouts": sum(status.values()), "spans": spans, "indexed": self._spans_read()}

        return await self._read(work, {"status": {}, "rollouts": 0, "spans": 0, "indexed": 0})

    async def page(self, wanted: RolloutFilter, cursor: str | None, limit: int) -> RolloutPage:
        start = read.cursor_of(cursor)

        def work(connection: sqlite3.Connection) -> RolloutPage:
            end = time.monotonic() + _SECONDS
            looked_at = _LOOKED_AT_IN_SPANS if wanted.text else _LOOKED_AT
            items: list[RolloutRow] = []
            at: int | None = start
            while at is not None and len(items) < limit and (at == start or time.monotonic() < end):
                found, at = read.rollouts_before(connection, wanted, at, looked_at, limit - len(items))
                items += found
            read.add_missing_rewards(connection, items)
            return RolloutPage(items, None if at is None else str(at))

        return await self._read(work, RolloutPage([], None))

    async def rows(self, ids: Sequence[str]) -> Sequence[RolloutRow]:
        def work(connection: sqlite3.Connection) -> list[RolloutRow]:
            items = read.rollouts_of(connection, ids)
            read.add_missing_rewards(connection, items)
            return items

        return await self._read(work, [])

    async def rollout(self, rollout_id: str) -> Rollout | None:
        return await self._read(lambda connection: read.rollout(connection, rollout_id), None)

    async def attempts(self, rollout_id: str) -> Sequence[Attempt]:
        return await self._read(lambda connection: read.attempts(connection, rollout_id), [])

    async def spans(self, rollout_id: str) -> Sequence[Span]:
        return await self._read(lambda connection: read.spans(connection, rollout_id, MAX_SPANS), [])

    async def groups(self, cursor: str | None, limit: int) -> tuple[Sequence[GroupRow], str | None]:
        start = read.cursor_of(cursor)

        def work(connection: sqlite3.Connection) -> tuple[list[GroupRow], str | None]:
            found, after = read.groups_before(connection, start, limit)
            return found, None if after is None else str(after)

        return await self._read(work, ([], None))

    async def group(self, group: str) -> Sequence[str]:
        statement = "SELECT rollout_id FROM facts.rollout_facts WHERE group_id = ? ORDER BY number LIMIT ?"

        def work(connection: sqlite3.Connection) -> list[str]:
            return [row[0] for row in connection.execute(statement, (group, MAX_GROUP))]

        return await self._read(work, [])

    async def workers(self) -> Sequence[Worker]:
        return await self._read(read.workers, [])

    async def resources(self) -> Sequence[ResourcesUpdate]:
        return await self._read(lambda connection: read.resources(connection, MAX_RESOURCES), [])

    async def mark(self) -> str:
        def stats() -> str:
            files = (self.path, self.path.with_name(self.path.name + "-wal"))
            found = []
            for file in files:
                with contextlib.suppress(OSError):
                    stat = file.stat()
                    found.append(f"{stat.st_mtime_ns}.{stat.st_size}")
            return f"{' '.join(found)} {self._spans_read()}"

        return await asyncio.get_running_loop().run_in_executor(self._pool, stats)

    async def close(self) -> None:
        await asyncio.to_thread(self._close)

    async def indexed(self, seconds: float) -> bool:
        """Return True once rewards and groups of all that the store holds are known, False after so many seconds."""

        def work(connection: sqlite3.Connection) -> bool:
            return self._facts is not None and self._facts[1].wait(seconds)

        return await self._read(work, False)

    def _close(self) -> None:
        self._pool.shutdown()
        for connection in self._connections:
            connection.close()
        if self._facts is not None:
            self._facts[1].close()
        if self._folder is not None:
            self._folder.cleanup()

    def _spans_read(self) -> int:
        return 0 if self._facts is None else self._facts[1].spans

    async def _read(self, work: Callable[[sqlite3.Connection], T], nothing: T) -> T:
        """Return the result of `work` on this thread's connection; `nothing` where there is no store yet."""

        def run() -> T:
            with _as_user_errors(self.path):
                connection = self._connection()
                return nothing if connection is None else work(connection)

        return await asyncio.get_running_loop().run_in_executor(self._pool, run)

    def _connection(self) -> sqlite3.Connection | None:
        try:
            inode = os.stat(self.path).st_ino
        except OSError:
            return None
        known: tuple[int, sqlite3.Connection] | None = getattr(self._local, "connection", None)
        if known is not None and known[0] == inode:
            return known[1]
        connection = self._open()
        if connection.execute("SELECT count(*) FROM sqlite_master WHERE name = 'agl_schema'").fetchone()[0] == 0:
            connection.close()
            return None  # it is being made
        version = connection.execute("SELECT version FROM agl_schema").fetchone()[0]
        if not SAME_TABLES_SINCE <= version <= SCHEMA_VERSION:
            connection.close()
            raise UserError(
                f"the store {self.path} has schema version {version}, the dashboard reads versions "
                f"{SAME_TABLES_SINCE} to {SCHEMA_VERSION}: a newer one needs a newer mini-agentic-rl, an older one is "
                "brought there by `agl rollouts list --store`"
            )
        connection.execute("ATTACH ? AS facts", (str(self._facts_of(inode).path),))
        with self._lock:
            self._connections.append(connection)
        self._local.connection = (inode, connection)
        return connection

    def _facts_of(self, inode: int) -> StoreFacts:
        with self._lock:
            if self._facts is None or self._facts[0] != inode:
                if self._facts is not None:
                    self._facts[1].close()
                if self._folder is None:
                    self._folder = tempfile.TemporaryDirectory(prefix="mini-agentic-rl-dashboard-")
                path = Path(self._folder.name) / f"{inode}-{time.monotonic_ns()}.db"
                self._facts = (inode, StoreFacts(path, self._open))
            return self._facts[1]

    def _open(self) -> sqlite3.Connection:
        name = f"{self.path.resolve().as_uri()}?mode=ro"
        connection = sqlite3.connect(name, uri=True, check_same_thread=False, isolation_level=None, timeout=5.0)
        try:
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        except (
            sqlite3.OperationalError
        ):  # nobody writes, and the folder cannot be written: no log can be made beside it
            connection.close()
            connection = sqlite3.connect(f"{name}&immutable=1", uri=True, check_same_thread=False, isolation_level=None)
        return connection


@contextlib.contextmanager
def _as_user_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise UserError(f"the store {path} cannot be read: {error}") from error
