"""The store in a SQLite file: it outlives its process, and several processes may use one file at once.

What a call has returned from is committed: it survives the death of the process at any instant (and a power cut, with
`synchronous="full"`). Every change is one transaction that holds the file's write lock, so a rollout is claimed once,
whoever asks. The file is in WAL mode, where readers and the writer do not block each other; it must lie on a local
disk.

Callers may come from any thread and event loop: one thread writes, a few read, and a call waits for its thread. A call
that is cancelled before its commit changes nothing. While somebody waits for work or for the end of rollouts, the file
is looked at every few milliseconds for what other processes have written; what this one writes is announced at once.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

from sqlalchemy import Connection
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DBAPIError

from .base import LightningStoreCapabilities, LightningStoreError
from .ledger import Ledger
from .ledger_store import LedgerStore, has_overdue
from .sql_schema import open_sqlite, prepare
from .sql_tables import SqlTables
from .waiting import Changes

T = TypeVar("T")
Synchronous = Literal["normal", "full"]

logger = logging.getLogger(__name__)

_READERS: Final = 4
_WATCH_SECONDS: Final = 0.02


class SqlLightningStore(LedgerStore):
    """A store in a SQLite file. Pickled to another process, it opens the same file there.

    Args:
        path_or_url: The file, or `sqlite:///` and the file. It is made, with its folders, if it is not there.
        scan_debounce_seconds: Attempts are checked against their limits at most this often by ordinary calls.
            Waiting calls check whenever a limit is reached.
        busy_timeout_seconds: How long a call waits for another process to finish writing.
        synchronous: `normal`: what was acknowledged survives the process. `full`: it survives a power cut as well, at
            the price of a disk flush for every call.

    Raises:
        LightningStoreError: the file cannot be used; the message says why. Any later call may raise it as well.
        ValueError: the URL is not one of a SQLite file.
    """

    def __init__(
        self,
        path_or_url: str | Path,
        *,
        scan_debounce_seconds: float = 0.5,
        busy_timeout_seconds: float = 30.0,
        synchronous: Synchronous = "normal",
    ) -> None:
        super().__init__()
        self.path = _file_of(path_or_url)
        self._scan_debounce_seconds = scan_debounce_seconds
        self._busy_timeout_seconds = busy_timeout_seconds
        self._synchronous: Synchronous = synchronous
        self._last_scan = float("-inf")
        self._process = os.getpid()
        self._watch_lock = threading.Lock()
        self._watcher: threading.Thread | None = None
        self._connection: Connection | None = None
        self._write_thread = ThreadPoolExecutor(1, "store-write")
        self._read_threads = ThreadPoolExecutor(_READERS, "store-read")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise LightningStoreError(f"cannot make the folder of the store {self.path}: {error}") from error
        self._engine = open_sqlite(self.path, busy_timeout_seconds, synchronous, readers=_READERS)
        self._write_thread.submit(self._in_transaction, self._prepare, _Caller()).result()

    def __reduce__(self) -> tuple[Callable[..., SqlLightningStore], tuple[Any, ...]]:
        settings = (self.path, self._scan_debounce_seconds, self._busy_timeout_seconds, self._synchronous)
        return _reopen, settings

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        return LightningStoreCapabilities(thread_safe=True, async_safe=True, zero_copy=True, otlp_traces=False)

    async def close(self) -> None:
        def release() -> None:
            self._write_thread.shutdown()
            self._read_threads.shutdown()
            if self._connection is not None:
                self._connection.close()
            self._engine.dispose()

        await asyncio.to_thread(release)

    async def _write(self, operation: Callable[[Ledger], T], *, check_health: bool = False) -> T:
        caller = _Caller()

        def work(connection: Connection) -> tuple[T, Changes]:
            ledger = Ledger(SqlTables(connection))
            if check_health or self._scan_is_due():
                ledger.check_health(time.time())
                self._last_scan = time.monotonic()
            return operation(ledger), ledger.changes

        def transaction() -> T:
            result, changes = self._in_transaction(work, caller)
            self._switchboard.announce(changes)
            return result

        try:
            return await self._run(self._write_thread, transaction)
        except asyncio.CancelledError:
            caller.gone = True
            raise

    async def _read(self, operation: Callable[[Ledger], T]) -> T:
        if self._scan_is_due():
            self._last_scan = time.monotonic()
            if await self._run(self._read_threads, self._query, has_overdue):
                await self._write(lambda ledger: None, check_health=True)
        return await self._run(self._read_threads, self._query, operation)

    async def _look(self, operation: Callable[[Ledger], T]) -> tuple[T, float]:
        with self._watch_lock:
            if self._watcher is None:
                self._watcher = threading.Thread(target=self._watch, name="store-watch", daemon=True)
                self._watcher.start()
        return await super()._look(operation)

    async def _run(self, threads: ThreadPoolExecutor, work: Callable[..., T], *args: Any) -> T:
        if os.getpid() != self._process:
            raise LightningStoreError(f"the store {self.path} was opened before a fork; open it in this process")
        try:
            future = threads.submit(work, *args)
        except RuntimeError as error:
            raise LightningStoreError(f"the store {self.path} is closed") from error
        return await asyncio.wrap_future(future)

    def _query(self, operation: Callable[[Ledger], T]) -> T:
        try:
            with self._engine.connect() as connection:
                return operation(Ledger(SqlTables(connection)))
        except DBAPIError as error:
            raise self._explained(error) from error

    def _in_transaction(self, work: Callable[[Connection], T], caller: _Caller) -> T:
        """Runs in the writing thread."""
        try:
            if self._connection is None:
                self._connection = self._engine.connect().execution_options(agl_writes=True)
            with self._connection.begin():
                result = work(self._connection)
                if caller.gone:
                    raise _CallerGone
                return result
        except DBAPIError as error:
            raise self._explained(error) from error

    def _prepare(self, connection: Connection) -> None:
        prepare(connection, self.path)

    def _watch(self) -> None:
        """Announce what other processes have written, while anybody waits."""
        seen: int | None = None
        while True:
            with self._watch_lock:
                if not self._switchboard.anybody:
                    self._watcher = None
                    return
            try:
                version = self._write_thread.submit(self._data_version).result()
                if version != seen:
                    self._switchboard.announce(self._query(partial(_news, sorted(self._switchboard.missing()))))
                    seen = version
            except LightningStoreError as error:
                logger.warning("cannot see what other processes write: %s", error)
            except RuntimeError:  # the store is closed
                return
            time.sleep(_WATCH_SECONDS)

    def _data_version(self) -> int:
        """A number that changes when another process commits. Runs in the writing thread, on its connection."""
        if self._connection is None or self._connection.connection.driver_connection is None:
            return 0
        cursor = self._connection.connection.driver_connection.execute("PRAGMA data_version")
        return int(cursor.fetchone()[0])

    def _scan_is_due(self) -> bool:
        return time.monotonic() - self._last_scan >= self._scan_debounce_seconds

    def _explained(self, error: DBAPIError) -> LightningStoreError:
        reason = str(error.orig)
        if "locked" in reason or "busy" in reason:
            advice = (
                f"another process kept it locked for more than {self._busy_timeout_seconds:g} s; "
                "end that process, or raise busy_timeout_seconds"
            )
        elif "full" in reason:
            advice = "no space is left to write to (--output-dir); free some, then go on with --resume"
        elif "not a database" in reason or "malformed" in reason:
            advice = "it is not a SQLite file, or damaged; choose another store path"
        elif "unable to open" in reason or "readonly" in reason:
            advice = "it cannot be opened for writing; check its permissions, or choose another store path"
        else:
            advice = "SQLite refused"
        return LightningStoreError(f"the store {self.path}: {advice} ({reason})")


class _Caller:
    """Whoever waits for a transaction."""

    gone = False


class _CallerGone(Exception):
    """Rolls a transaction back whose caller was cancelled."""


def _news(missing: list[str], ledger: Ledger) -> Changes:
    ended, _ = ledger.tables.ended(missing)
    return Changes(
        queued=ledger.tables.has_queued(),
        ended=[rollout.rollout_id for rollout in ended],
        deadline=ledger.tables.next_deadline(),
    )


def _reopen(
    path: Path, scan_debounce_seconds: float, busy_timeout_seconds: float, synchronous: Synchronous
) -> SqlLightningStore:
    return SqlLightningStore(
        path,
        scan_debounce_seconds=scan_debounce_seconds,
        busy_timeout_seconds=busy_timeout_seconds,
        synchronous=synchronous,
    )


def _file_of(path_or_url: str | Path) -> Path:
    file = str(path_or_url)
    if "://" in file:
        try:
            url = make_url(file)
        except ArgumentError as error:
            raise ValueError(f"store URL {file!r}: {error}") from error
        if url.get_backend_name() != "sqlite":
            raise ValueError(f"store URL {file!r}: this store keeps a SQLite file; expected a path or sqlite:///path")
        file = url.database or ":memory:"
    if file == ":memory:":
        raise ValueError("a SqlLightningStore needs a file; use InMemoryLightningStore to keep nothing on disk")
    return Path(file).absolute()
