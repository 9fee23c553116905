"""The store contract on top of a ledger; a backend adds only how a transaction is run.

Waiting calls (`wait_for_work`, `wait_for_rollouts`) are woken from any thread without polling. They open a `Listener`
before they look at the store, so that no event between the look and the wait is missed.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count
from typing import Any, Final, TypeVar

from ..types import AttemptedRollout, EnqueueRolloutRequest, PaginatedResult, Rollout, Span
from .base import (
    LightningStoreError,
    LightningStoreStatistics,
    StoreUnreachableError,
    check_heartbeats,
)
from .ledger import QUERIES, Changes, Ledger, once
from .lifecycle import StoreClock
from .tables import Kind, Tables
from .threading import ForwardingStore, forward_methods

T = TypeVar("T")
U = TypeVar("U")

ROWS_AT_ONCE: Final = 64
"""Rows in one transaction of a longer write: about 30 ms, for which the next writer waits."""
_AWAY_SECONDS: Final = 30.0
"""Seconds for which a waiting call retries a server that does not answer: about the time of a restart."""
_RETRY_SECONDS: Final = 0.2


_WRITES: Final = (
    "start_rollout",
    "start_attempt",
    "update_rollout",
    "update_attempt",
    "add_resources",
    "update_resources",
    "update_worker",
)
_READS: Final = (
    "list_rollouts",
    "list_groups",
    "get_rollout_by_id",
    "get_latest_attempt",
    "get_resources_by_id",
    "get_latest_resources",
    "get_worker_by_id",
)


class LedgerStore(ForwardingStore):
    """Base of the stores that keep the data themselves, in memory or in a database."""

    def __init__(self) -> None:
        self._notifier = Notifier()
        self._opened = time.monotonic()
        self._clock = StoreClock()

    @abstractmethod
    async def _write(self, operation: Callable[[Ledger], T], *, check_health: bool = False, rows: int = 1) -> T:
        """Run `operation`, which writes about `rows` rows, in a transaction, and announce the ledger's `changes`.

        Attempts past their limits are marked first, if `check_health` is set or the last check is some time ago; if
        they are many, each call marks some of them.
        """

    @abstractmethod
    async def _read(self, operation: Callable[[Ledger], T]) -> T:
        """Run an operation that changes nothing; attempts past their limits are marked first, as in `_write`."""

    async def _forward(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a method of the contract that is one transaction: one of the ledger, or a query."""
        if name in QUERIES:
            return await self._read(lambda ledger: ledger.tables.select(ledger.query(name, args, kwargs)))
        operation = getattr(Ledger, name)

        def run(ledger: Ledger) -> Any:
            return operation(ledger, *args, **kwargs)

        return await (self._write(once(run, 0)) if name in _WRITES else self._read(run))

    async def take_over(self, work: Callable[[Tables], T]) -> T:
        """Run `work` on the tables in one transaction, without the rules of the ledger, to import records."""
        return await self._write(lambda ledger: work(ledger.tables))

    async def statistics(self) -> LightningStoreStatistics:
        counts = await self._read(lambda ledger: ledger.tables.counts())
        return {**counts, "name": type(self).__name__, "uptime": time.monotonic() - self._opened}

    async def enqueue_many_rollouts(self, rollouts: Sequence[EnqueueRolloutRequest]) -> Sequence[Rollout]:
        return await self._in_slices(rollouts, Ledger.enqueue_many_rollouts)

    async def dequeue_many_rollouts(
        self, *, limit: int = 1, worker_id: str | None = None
    ) -> Sequence[AttemptedRollout]:
        claimed: list[AttemptedRollout] = []
        for part in count():
            wanted = min(limit - len(claimed), ROWS_AT_ONCE)
            claim = partial(Ledger.dequeue_many_rollouts, limit=wanted, worker_id=worker_id)
            try:
                rollouts = await self._write(once(claim, part), rows=wanted)
            except LightningStoreError:
                if not claimed:
                    raise
                break
            claimed += rollouts
            if len(rollouts) < wanted or len(claimed) == limit:
                break
            await asyncio.sleep(0)
        return claimed

    async def wait_for_work(self, timeout: float) -> bool:
        end = time.monotonic() + timeout
        with self._notifier.listen(work=True) as listener:
            while True:
                queued, deadline = await self._look_patiently(lambda tables: tables.has_queued(), end)
                if queued or time.monotonic() >= end:
                    return queued
                await listener.wait(min(end, deadline))

    async def add_many_spans(self, spans: Sequence[Span]) -> Sequence[Span]:
        return await self._in_slices(spans, Ledger.add_many_spans)

    async def get_many_span_sequence_ids(self, rollout_attempt_ids: Sequence[tuple[str, str]]) -> Sequence[int]:
        return await self._in_slices(rollout_attempt_ids, Ledger.get_many_span_sequence_ids)

    async def delete_rollouts(self, rollout_ids: Sequence[str]) -> Sequence[str]:
        waiting = list(dict.fromkeys(rollout_ids))
        deleted: list[str] = []
        part = 0
        while waiting:
            some = waiting[:ROWS_AT_ONCE]
            ids, done = await self._write(once(partial(Ledger.delete_some, rollout_ids=some), part), rows=len(some))
            deleted += ids
            waiting = waiting[done:]
            part += 1
            await asyncio.sleep(0)
        return deleted

    async def wait_for_rollouts(self, *, rollout_ids: list[str], timeout: float | None = None) -> list[Rollout]:
        end = FOR_EVER if timeout is None else time.monotonic() + timeout
        wanted = list(dict.fromkeys(rollout_ids))
        with self._notifier.listen(rollout_ids=wanted) as listener:
            while True:
                (ended, unknown), deadline = await self._look_patiently(lambda tables: tables.ended(wanted), end)
                if unknown:
                    raise ValueError(f"no rollout {unknown[0]}")
                if len(ended) == len(wanted) or time.monotonic() >= end:
                    return list(ended)
                self._notifier.settle(listener, [rollout.rollout_id for rollout in ended])
                await listener.wait(min(end, deadline))

    async def update_many_workers(self, heartbeats: dict[str, dict[str, Any]]) -> None:
        check_heartbeats(heartbeats)

        def record(ledger: Ledger) -> None:
            for worker_id, stats in heartbeats.items():
                ledger.update_worker(worker_id, stats)

        await self._write(once(record, 0), rows=len(heartbeats))

    async def _in_slices(self, items: Sequence[U], write: Callable[[Ledger, Sequence[U]], list[T]]) -> list[T]:
        """Write items in transactions of bounded length, between which others write; return the results of all.

        Raises:
            ValueError, LightningStoreError: one could not be written; the message says how many were before it.
        """
        results: list[T] = []
        for part, start in enumerate(range(0, max(1, len(items)), ROWS_AT_ONCE)):
            some = items[start : start + ROWS_AT_ONCE]

            def write_some(ledger: Ledger, some: Sequence[U] = some) -> list[T]:
                return write(ledger, some)

            try:
                results += await self._write(once(write_some, part), rows=len(some))
            except (ValueError, LightningStoreError) as error:
                if not start:
                    raise
                raise type(error)(f"{error} (the first {start} of {len(items)} had been written)") from error
            if start + ROWS_AT_ONCE < len(items):
                await asyncio.sleep(0)
        return results

    async def handles(self, method: str, arguments: Mapping[str, Any]) -> tuple[Kind, PaginatedResult[Any]]:
        """Return the page of a query method with a small handle in place of each item, which `items` takes.

        So a page of any length is read in slices, whatever is written meanwhile.
        """
        page = await self._read(lambda ledger: ledger.tables.handles(ledger.query(method, (), arguments)))
        return QUERIES[method], page

    async def items(self, kind: Kind, handles: Sequence[Any]) -> list[Any]:
        """Return the items of some of the handles of a page, without items deleted since."""
        return await self._read(lambda ledger: ledger.tables.items(kind, handles))

    async def _look_patiently(self, look: Callable[[Tables], T], end: float) -> tuple[T, float]:
        """Call `_look`, again while the database server does not answer, not past `end` (`time.monotonic`)."""
        give_up = min(end, time.monotonic() + _AWAY_SECONDS)
        while True:
            try:
                return await self._look(look)
            except StoreUnreachableError:
                if time.monotonic() >= give_up:
                    raise
                await asyncio.sleep(_RETRY_SECONDS)

    async def _look(self, look: Callable[[Tables], T]) -> tuple[T, float]:
        """Return the result of `look`, and the time (of `time.monotonic`) at which an attempt may next pass a limit."""
        if self._clock.jumped() or await self._read(has_overdue):
            await self._write(lambda ledger: None, check_health=True)
        result, deadline = await self._read(lambda ledger: (look(ledger.tables), ledger.tables.next_deadline()))
        return result, FOR_EVER if deadline is None else monotonic_of(deadline)


forward_methods(LedgerStore, (*_WRITES, *_READS, *QUERIES))


def has_overdue(ledger: Ledger) -> bool:
    """Return True if an attempt may have passed a limit without having been marked."""
    deadline = ledger.tables.next_deadline()
    return deadline is not None and deadline <= time.time()


FOR_EVER: Final = float("inf")


class Listener:
    """A waiting coroutine, bound to its event loop."""

    def __init__(self, *, work: bool, rollout_ids: Iterable[str]) -> None:
        self._loop = asyncio.get_running_loop()
        self._woken = asyncio.Event()
        self.until = FOR_EVER
        self.work = work
        self.missing = set(rollout_ids)

    def wake(self) -> None:
        """Make `wait` return; callable from any thread."""
        with contextlib.suppress(RuntimeError):  # its event loop is closed
            self._loop.call_soon_threadsafe(self._woken.set)

    async def wait(self, until: float) -> None:
        """Return when woken, or at `until` (seconds of `time.monotonic`)."""
        self.until = until
        seconds = None if until == FOR_EVER else max(0.0, until - time.monotonic())
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._woken.wait(), seconds)
        self._woken.clear()


class Notifier:
    """All listeners of one store."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listeners: set[Listener] = set()

    @contextmanager
    def listen(self, *, work: bool = False, rollout_ids: Iterable[str] = ()) -> Iterator[Listener]:
        """Open a listener that is woken when there is work (`work`), or when all of `rollout_ids` have ended."""
        listener = Listener(work=work, rollout_ids=rollout_ids)
        with self._lock:
            self._listeners.add(listener)
        try:
            yield listener
        finally:
            with self._lock:
                self._listeners.discard(listener)

    def announce(self, changes: Changes) -> None:
        """Wake the listeners that wait for one of these changes."""
        if not self._listeners:
            return
        deadline = FOR_EVER if changes.deadline is None else monotonic_of(changes.deadline)
        with self._lock:
            for listener in self._listeners:
                if listener.missing:
                    listener.missing.difference_update(changes.ended)
                    if not listener.missing:
                        listener.wake()
                if (listener.work and changes.queued) or deadline < listener.until:
                    listener.wake()

    def wake_all(self) -> None:
        """Wake every listener."""
        with self._lock:
            for listener in self._listeners:
                listener.wake()

    def settle(self, listener: Listener, ended: Iterable[str]) -> None:
        """Record that these rollouts have ended for the listener; wake it if they were the last ones missing."""
        with self._lock:
            listener.missing.difference_update(ended)
            if not listener.missing:
                listener.wake()

    def missing(self) -> set[str]:
        """Return the ids of the rollouts whose end a caller waits for."""
        with self._lock:
            return set().union(*(listener.missing for listener in self._listeners))

    @property
    def has_listeners(self) -> bool:
        """True if there is a listener."""
        return bool(self._listeners)


def monotonic_of(wall_time: float) -> float:
    """Convert seconds since the epoch to seconds of `time.monotonic`."""
    return time.monotonic() + wall_time - time.time()
