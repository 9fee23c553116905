"""The base of every store in a database: its threads, group commit, health scans, and writes of other processes.

A change is committed when its call returns, so it survives the death of this process at any instant. Calls may come
from any thread and event loop. One thread writes and a few threads read. Writes that wait at the same time share a
transaction (group commit). If one of them fails, the transaction is rolled back and each write runs in its own, so
that one caller's failure does not reach another. A call that is cancelled before its commit changes nothing.

The drivers are synchronous: an async driver would switch tasks or threads at each statement of a transaction, and this
design switches threads twice per transaction.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from functools import partial
from typing import Any, Final, Protocol, TypeVar

from ..errors import fit_for_future
from .base import LightningStoreCapabilities, LightningStoreError, StorageFailedError
from .ledger import Changes, Ledger
from .ledger_store import LedgerStore, has_overdue
from .tables import Tables

T = TypeVar("T")

logger = logging.getLogger(__name__)

READERS: Final = 4
"""Number of threads that read at once."""
_MOST_TOGETHER: Final = 64
"""Most short writes of one transaction."""
_LINGER_SECONDS: Final = 5.0
_RETRY_SECONDS: Final = 0.5
_LOOK_SHARE: Final = 0.05
"""Maximum share of one core for looking whether other processes have written."""


class Database(Protocol):
    """A database as a `DatabaseStore` uses it."""

    def open(self) -> None:
        """Check the database, and create what is missing in it."""

    def transaction(self, work: Callable[[Tables], Changes]) -> None:
        """Run `work` in a transaction that excludes every other writer, of any process, and commit it.

        If `work` raises, the transaction is rolled back and the error is raised. `work` may run again after a rollback,
        never after a commit with an unknown outcome, and not at all if the transaction cannot begin. It returns the
        events that other processes may wait for. Called in one thread at a time.
        """

    def query(self, work: Callable[[Tables], T]) -> T:
        """Run `work`, which only reads, on one consistent state. Called in several threads at once."""

    def foreign_writes(self) -> Generator[bool, None, None]:
        """Yield True when another process may have written since the last yield, else False every fraction of a second.

        Iterated in its own thread while a caller waits. The first value is True. An error ends the iteration; it is
        started again after a pause.
        """

    def explained(self, error: Exception) -> Exception | None:
        """Return the error to raise for an error of the database, or None if the error is of another kind.

        A LightningStoreError that says what to do, or a ValueError if the database cannot store the caller's values.
        """

    def close(self) -> None:
        """Close all connections. Called after all other methods have returned; may be called twice."""


class DatabaseStore(LedgerStore):
    """Base of the stores in a database, which other processes may use at the same time.

    Args:
        database: The database, which is opened.
        name: Name of the store in messages: a path, or a URL without its password.
        scan_debounce_seconds: Attempts are checked against their limits at most this often by ordinary calls.
            Waiting calls check whenever a limit is reached. Infinity: ordinary calls check none.
        arguments: Keyword arguments with which a pickled store opens the same database in another process.
    """

    def __init__(
        self, database: Database, name: str, *, scan_debounce_seconds: float, arguments: dict[str, Any]
    ) -> None:
        super().__init__()
        self._database = database
        self._name = name
        self._arguments = arguments
        self._scan_debounce_seconds = scan_debounce_seconds
        self._last_scan = 0.0
        self._process = os.getpid()
        self._closing = False
        try:
            self._explaining(database.open)
        except BaseException:
            database.close()
            raise
        self._failure: StorageFailedError | None = None
        """Error of the last transaction, if the disk failed."""
        self._read_threads = ThreadPoolExecutor(READERS, "store-read")
        self._write_thread = ThreadPoolExecutor(1, "store-write")
        self._queue_lock = threading.Lock()
        self._short_writes: deque[_Write] = deque()
        self._long_writes: deque[_Write] = deque()
        """Parts of long calls, which wait for the short writes."""
        self._commit_scheduled = False
        self._watch_lock = threading.Lock()
        self._watcher: threading.Thread | None = None
        self._waited_at = 0.0

    def __reduce__(self) -> tuple[Callable[[], DatabaseStore], tuple[()]]:
        return partial(type(self), **self._arguments), ()

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        return LightningStoreCapabilities(thread_safe=True, async_safe=True, zero_copy=True, otlp_traces=False)

    async def close(self) -> None:
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        with self._queue_lock:
            self._closing = True
        self._write_thread.shutdown()
        with self._watch_lock:
            watcher = self._watcher
        if watcher is not None:
            watcher.join()
        self._read_threads.shutdown()
        self._database.close()

    def _check_open(self) -> None:
        if os.getpid() != self._process:
            raise LightningStoreError(f"the store {self._name} was opened before a fork; open it in this process")
        if self._closing:
            raise LightningStoreError(f"the store {self._name} is closed")

    async def _write(self, operation: Callable[[Ledger], T], *, check_health: bool = False, rows: int = 1) -> T:
        write = _Write(operation, check_health)
        self._check_open()  # before the lock, which a fork may have copied in use
        with self._queue_lock:
            self._check_open()
            if not self._commit_scheduled:
                self._submit(self._write_thread, self._commit_waiting)
                self._commit_scheduled = True
            (self._short_writes if rows <= 1 else self._long_writes).append(write)
        result: T = await write.answer
        return result

    async def _read(self, operation: Callable[[Ledger], T]) -> T:
        if self._scan_is_due():
            self._last_scan = time.monotonic()
            if self._clock.jumped() or await self._ask(has_overdue):
                await self._write(lambda ledger: None, check_health=True)
        return await self._ask(operation)

    async def _look(self, look: Callable[[Tables], T]) -> tuple[T, float]:
        if self._failure is not None:
            raise StorageFailedError(str(self._failure)) from self._failure
        with self._watch_lock:
            self._waited_at = time.monotonic()
            if (self._watcher is None or not self._watcher.is_alive()) and not self._closing:
                watcher = threading.Thread(target=self._watch, name="store-watch", daemon=True)
                watcher.start()
                self._watcher = watcher
        return await super()._look(look)

    async def _ask(self, operation: Callable[[Ledger], T]) -> T:
        def answer() -> T:
            return self._database.query(lambda tables: operation(Ledger(tables)))

        self._check_open()
        return await asyncio.wrap_future(self._submit(self._read_threads, partial(self._explaining, answer)))

    def _submit(self, threads: ThreadPoolExecutor, function: Callable[[], T]) -> Future[T]:
        try:
            return threads.submit(function)
        except RuntimeError as error:  # it was closed just now, or the program ends
            raise LightningStoreError(f"the store {self._name} is closed") from error

    def _commit_waiting(self) -> None:
        """Commit the short writes that wait and one long write together, and answer their callers, until none waits.

        Runs in the writing thread.
        """
        while True:
            with self._queue_lock:
                writes = [self._short_writes.popleft() for _ in range(min(len(self._short_writes), _MOST_TOGETHER))]
                if self._long_writes:
                    writes.append(self._long_writes.popleft())
                if not writes:
                    self._commit_scheduled = False
                    return
            writes = [write for write in writes if not write.unwanted]
            if writes:
                self._commit_and_answer(writes)

    def _commit_and_answer(self, writes: Sequence[_Write]) -> None:
        try:
            self._commit(writes)
        except BaseException as error:  # these writes fail, and the thread goes on for the others
            logger.exception("%d writes of the store failed", len(writes))
            for write in writes:
                if write.error is None and not write.committed:
                    write.error = LightningStoreError(f"the store could not write: {error!r}")
                    write.error.__cause__ = error
        by_loop: dict[asyncio.AbstractEventLoop, list[_Write]] = {}
        for write in writes:
            by_loop.setdefault(write.loop, []).append(write)
        for loop, of_loop in by_loop.items():
            with contextlib.suppress(RuntimeError):  # the event loop is closed, so nobody waits
                loop.call_soon_threadsafe(_deliver, of_loop)

    def _commit(self, writes: Sequence[_Write]) -> bool:
        """Commit writes together or, if that fails, each alone. Return False if the database could not be reached."""
        began = finished = False
        scan = self._clock.jumped() or self._scan_is_due() or any(write.check_health for write in writes)
        now = self._clock.look_for_scan() if scan else None  # once: a transaction may be run again
        changes, complete = Changes(), True

        def work(tables: Tables) -> Changes:
            nonlocal began, finished, changes, complete
            began, finished = True, False
            ledger = Ledger(tables)
            if now is not None:
                complete = ledger.check_health(now)
            for write in writes:
                write.result = write.operation(ledger)
            if any(write.unwanted for write in writes):
                raise _CallerGone
            finished = True
            changes = ledger.changes
            return changes

        try:
            self._database.transaction(work)
        except Exception as error:
            if began and not finished and len(writes) > 1:
                return self._commit_each(writes)
            self._fail(writes, error)
            return began
        self._failure = None
        for write in writes:
            write.committed = True
        if scan:
            self._last_scan = time.monotonic() if complete else 0.0
        self._notifier.announce(changes)
        return True

    def _commit_each(self, writes: Sequence[_Write]) -> bool:
        for index, write in enumerate(writes):
            if not write.unwanted and not self._commit([write]):
                for later in writes[index + 1 :]:
                    later.error = write.error
                return False
        return True

    def _fail(self, writes: Sequence[_Write], error: Exception) -> None:
        explained = self._database.explained(error)
        if explained is not None:
            explained.__cause__ = error
        if isinstance(explained, StorageFailedError):
            self._failure = explained
            self._notifier.wake_all()  # nothing that they wait for can be written
        for write in writes:
            write.error = explained or error

    def _watch(self) -> None:
        """Announce what other processes have written, as long as a caller waits. Runs in its own thread."""
        warned = False
        while not self._watch_ends():
            try:
                with closing(self._database.foreign_writes()) as writes:
                    for written in writes:
                        if self._watch_ends():
                            return
                        if written:
                            self._announce_news()
                        warned = False
            except Exception as error:
                if self._watch_ends():
                    return
                if not warned:
                    reason = self._database.explained(error) or f"{self._name}: {error}"
                    logger.warning(
                        "no notifications of writes by other processes, polling every %g s: %s", _RETRY_SECONDS, reason
                    )
                warned = True
                time.sleep(_RETRY_SECONDS)
                try:
                    self._announce_news()
                except Exception as error_again:
                    logger.debug("the store %s: %s", self._name, error_again)

    def _watch_ends(self) -> bool:
        with self._watch_lock:
            lingered = not self._notifier.has_listeners and time.monotonic() - self._waited_at > _LINGER_SECONDS
            if self._closing or lingered:
                self._watcher = None
                return True
            return False

    def _announce_news(self) -> None:
        """Wake the callers whose wait has ended, then pause, so that polling takes a bounded share of the CPU."""
        if not self._notifier.has_listeners:
            return
        started = time.monotonic()
        missing = sorted(self._notifier.missing())

        def current_events(tables: Tables) -> Changes:
            ended, _ = tables.ended(missing)
            return Changes(
                queued=tables.has_queued(),
                ended=[rollout.rollout_id for rollout in ended],
                deadline=tables.next_deadline(),
            )

        self._notifier.announce(self._database.query(current_events))
        time.sleep(min(_RETRY_SECONDS, (time.monotonic() - started) / _LOOK_SHARE))

    def _scan_is_due(self) -> bool:
        return time.monotonic() >= self._last_scan + self._scan_debounce_seconds

    def _explaining(self, work: Callable[[], T]) -> T:
        try:
            return work()
        except Exception as error:
            explained = self._database.explained(error)
            if explained is None:
                raise
            raise explained from error


class _CallerGone(Exception):
    """Roll a transaction back because one of its callers was cancelled."""


class _Write:
    """Operation of one caller and, later, its outcome: a result or an error."""

    def __init__(self, operation: Callable[[Ledger], Any], check_health: bool) -> None:
        self.operation = operation
        self.check_health = check_health
        self.result: Any = None
        self.error: BaseException | None = None
        self.committed = False
        self.loop = asyncio.get_running_loop()
        self.answer: asyncio.Future[Any] = self.loop.create_future()

    @property
    def unwanted(self) -> bool:
        """True if the caller was cancelled."""
        return self.answer.cancelled()


def _deliver(writes: Sequence[_Write]) -> None:
    """Give the outcomes to the callers. Runs in their event loop."""
    for write in writes:
        if write.answer.done():
            continue
        if write.error is None:
            write.answer.set_result(write.result)
        else:
            write.answer.set_exception(fit_for_future(write.error, "an operation of the store"))
