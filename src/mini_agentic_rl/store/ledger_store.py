"""The store contract on top of a ledger. A backend adds only how a transaction is run.

Callers that wait (`wait_for_work`, `wait_for_rollouts`) are coroutines of any event loop, woken from any thread without
polling: a caller opens a `Listener`, then looks, then waits, so that it misses nothing between the look and the wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from itertools import count
from typing import Any, Final, TypeVar

from ..types import (
    Attempt,
    AttemptedRollout,
    EnqueueRolloutRequest,
    NamedResources,
    PaginatedResult,
    ResourcesUpdate,
    Rollout,
    RolloutStatus,
    Span,
    Worker,
)
from . import lifecycle
from .base import (
    UNSET,
    LightningStore,
    LightningStoreError,
    LightningStoreStatistics,
    StoreUnreachableError,
    Unset,
    check_heartbeats,
)
from .ledger import Changes, Ledger, once
from .lifecycle import StoreClock
from .tables import Kind, Query, Tables, WalkStep, conditions

T = TypeVar("T")
U = TypeVar("U")

ROWS_AT_ONCE: Final = 64
"""Rows that one transaction of a longer write has: some 30 ms of a database, for which the next writer waits."""

_handles_of: ContextVar[list[Kind] | None] = ContextVar("handles_of", default=None)
"""Where a query of this context notes its kind, if it is to return handles."""
_AWAY_SECONDS: Final = 30.0
"""Seconds for which a waiting call tries a server that does not answer: about as long as a restart takes."""
_RETRY_SECONDS: Final = 0.2


def _by_contract(method: Callable[..., Coroutine[Any, Any, T]]) -> Callable[..., Coroutine[Any, Any, T]]:
    """Give a method the signature that the contract has for it; it gets all arguments by name, also defaults."""
    signature = inspect.signature(getattr(LightningStore, method.__name__))

    @functools.wraps(method)
    async def call(*args: Any, **kwargs: Any) -> T:
        given = signature.bind(*args, **kwargs)
        given.apply_defaults()
        return await method(**given.arguments)

    call.__signature__ = signature  # type: ignore[attr-defined]  # functions take any attribute
    return call


class LedgerStore(LightningStore):
    """Base of the stores that keep the data themselves."""

    def __init__(self) -> None:
        self._notifier = Notifier()
        self._opened = time.monotonic()
        self._clock = StoreClock()

    @abstractmethod
    async def _write(self, operation: Callable[[Ledger], T], *, check_health: bool = False, rows: int = 1) -> T:
        """Run `operation`, which writes about `rows` rows, in a transaction: all of it or nothing, unseen by others
        until it is whole.

        Attempts past their limits are marked first, if that was not done a short while ago or `check_health` is set.
        The ledger's `changes` are announced after the transaction.
        """

    @abstractmethod
    async def _read(self, operation: Callable[[Ledger], T]) -> T:
        """Run an operation that changes nothing; attempts past their limits are marked first as for `_write`."""

    async def take_over(self, work: Callable[[Tables], T]) -> T:
        """Run `work` on the tables in one transaction, past all rules: for records that another store has made."""
        return await self._write(lambda ledger: work(ledger.tables))

    async def statistics(self) -> LightningStoreStatistics:
        counts = await self._read(lambda ledger: ledger.tables.counts())
        statistics = LightningStoreStatistics(name=type(self).__name__, uptime=time.monotonic() - self._opened)
        statistics.update(counts)
        return statistics

    @_by_contract
    async def start_rollout(self, worker_id: str | None, rollout_id: str | None, **request: Any) -> AttemptedRollout:
        wanted = EnqueueRolloutRequest(**request)
        return await self._change(lambda ledger: ledger.start_rollout(wanted, worker_id, rollout_id))

    async def enqueue_many_rollouts(self, rollouts: Sequence[EnqueueRolloutRequest]) -> Sequence[Rollout]:
        return await self._in_slices(rollouts, Ledger.enqueue)

    async def dequeue_many_rollouts(
        self, *, limit: int = 1, worker_id: str | None = None
    ) -> Sequence[AttemptedRollout]:
        claimed: list[AttemptedRollout] = []
        for part in count():
            wanted = min(limit - len(claimed), ROWS_AT_ONCE)
            claim = partial(Ledger.dequeue, limit=wanted, worker_id=worker_id)
            try:
                found = await self._change(claim, wanted, part)
            except LightningStoreError:
                if not claimed:
                    raise
                break
            claimed += found
            if len(found) < wanted or len(claimed) == limit:
                break
            await asyncio.sleep(0)
        return claimed

    async def wait_for_work(self, timeout: float) -> bool:
        end = time.monotonic() + timeout
        with self._notifier.listen(work=True) as listener:
            while True:
                queued, deadline = await self._look_patiently(lambda ledger: ledger.tables.has_queued(), end)
                if queued or time.monotonic() >= end:
                    return queued
                await listener.wait(min(end, deadline))

    async def start_attempt(self, rollout_id: str, worker_id: str | None = None) -> AttemptedRollout:
        return await self._change(lambda ledger: ledger.start_attempt(rollout_id, worker_id))

    async def add_many_spans(self, spans: Sequence[Span]) -> Sequence[Span]:
        return await self._in_slices(spans, Ledger.add_spans)

    async def get_many_span_sequence_ids(self, rollout_attempt_ids: Sequence[tuple[str, str]]) -> Sequence[int]:
        return await self._in_slices(rollout_attempt_ids, Ledger.span_numbers)

    @_by_contract
    async def query_rollouts(
        self, status: Sequence[str] | None, rollout_ids: Sequence[str] | None, **asked: Any
    ) -> PaginatedResult[Rollout]:
        for name, older in (("status_in", status), ("rollout_id_in", rollout_ids)):
            asked[name] = older if asked[name] is None else asked[name]
        return await self._select("rollout", asked)

    @_by_contract
    async def walk_rollouts(
        self, beyond: str | None, status_in: Sequence[RolloutStatus] | None, sort_order: str, limit: int
    ) -> Sequence[Rollout]:
        if sort_order not in ("asc", "desc"):
            raise ValueError(f"sort_order={sort_order!r}: expected 'asc' or 'desc'")
        if limit < 0:
            raise ValueError(f"limit={limit}: expected a count")
        step = WalkStep(beyond, None if status_in is None else tuple(status_in), sort_order == "desc", limit)
        found = await self._read(lambda ledger: ledger.tables.walk(step))
        if found is None:
            raise ValueError(f"no rollout {beyond}")
        return found

    async def get_rollout_by_id(self, rollout_id: str) -> Rollout | None:
        found = await self._read(lambda ledger: ledger.tables.rollout(rollout_id))
        return None if found is None else lifecycle.with_attempt(*found)

    @_by_contract
    async def query_attempts(self, rollout_id: str, **asked: Any) -> PaginatedResult[Attempt]:
        return await self._select("attempt", asked, rollout_id=rollout_id)

    async def get_latest_attempt(self, rollout_id: str) -> Attempt | None:
        found = await self._read(lambda ledger: ledger.tables.rollout(rollout_id))
        return None if found is None else found[1]

    @_by_contract
    async def query_spans(self, rollout_id: str, attempt_id: str | None, **asked: Any) -> PaginatedResult[Span]:
        if attempt_id == "latest":
            latest = await self.get_latest_attempt(rollout_id)
            attempt_id = "" if latest is None else latest.attempt_id
        return await self._select("span", asked, rollout_id=rollout_id, attempt_id=attempt_id)

    async def get_reward_spans(self, rollout_ids: Sequence[str]) -> Sequence[Span]:
        return await self._read(lambda ledger: ledger.tables.reward_spans(rollout_ids))

    @_by_contract
    async def update_rollout(self, rollout_id: str, **fields: Any) -> Rollout:
        return await self._change(lambda ledger: ledger.update_rollout(rollout_id, **fields))

    @_by_contract
    async def update_attempt(self, rollout_id: str, attempt_id: str, **fields: Any) -> Attempt:
        return await self._change(lambda ledger: ledger.update_attempt(rollout_id, attempt_id, **fields))

    async def delete_rollouts(self, rollout_ids: Sequence[str]) -> Sequence[str]:
        return await self._in_slices(list(dict.fromkeys(rollout_ids)), Ledger.delete_rollouts)

    async def wait_for_rollouts(self, *, rollout_ids: list[str], timeout: float | None = None) -> list[Rollout]:
        end = FOR_EVER if timeout is None else time.monotonic() + timeout
        wanted = list(dict.fromkeys(rollout_ids))
        with self._notifier.listen(rollout_ids=wanted) as listener:
            while True:
                ended, deadline = await self._look_patiently(lambda ledger: ledger.ended(wanted), end)
                if len(ended) == len(wanted) or time.monotonic() >= end:
                    return ended
                self._notifier.settle(listener, [rollout.rollout_id for rollout in ended])
                await listener.wait(min(end, deadline))

    async def add_resources(self, resources: NamedResources) -> ResourcesUpdate:
        return await self._change(lambda ledger: ledger.write_resources(resources))

    async def update_resources(self, resources_id: str, resources: NamedResources) -> ResourcesUpdate:
        return await self._change(lambda ledger: ledger.write_resources(resources, resources_id))

    @_by_contract
    async def query_resources(self, **asked: Any) -> PaginatedResult[ResourcesUpdate]:
        return await self._select("resources", asked)

    async def get_resources_by_id(self, resources_id: str) -> ResourcesUpdate | None:
        return await self._read(lambda ledger: ledger.tables.resources(resources_id))

    async def get_latest_resources(self) -> ResourcesUpdate | None:
        return await self._read(lambda ledger: ledger.tables.latest_resources())

    async def update_worker(self, worker_id: str, heartbeat_stats: dict[str, Any] | Unset = UNSET) -> Worker:
        return await self._change(lambda ledger: ledger.update_worker(worker_id, heartbeat_stats))

    async def update_many_workers(self, heartbeats: dict[str, dict[str, Any]]) -> None:
        check_heartbeats(heartbeats)

        def record(ledger: Ledger) -> None:
            for worker_id, stats in heartbeats.items():
                ledger.update_worker(worker_id, stats)

        await self._change(record, len(heartbeats))

    @_by_contract
    async def query_workers(self, **asked: Any) -> PaginatedResult[Worker]:
        return await self._select("worker", asked)

    async def get_worker_by_id(self, worker_id: str) -> Worker | None:
        return await self._read(lambda ledger: ledger.tables.worker(worker_id))

    async def _change(self, operation: Callable[[Ledger], T], rows: int = 1, part: int = 0) -> T:
        """Run one transaction of a method, once per idempotency key.

        Args:
            operation: The transaction.
            rows: Approximate number of rows that it writes.
            part: Number of the transaction within the method.
        """
        return await self._write(once(operation, part), rows=rows)

    async def _in_slices(self, items: Sequence[U], write: Callable[[Ledger, Sequence[U]], list[T]]) -> list[T]:
        """Write items in transactions of bounded length, between which others write; return what all of them gave.

        Raises:
            ValueError, LightningStoreError: one could not be written; the message says how many were before it.
        """
        done: list[T] = []
        for part, start in enumerate(range(0, max(1, len(items)), ROWS_AT_ONCE)):
            some = items[start : start + ROWS_AT_ONCE]
            try:
                done += await self._change(partial(_written, write, some), len(some), part)
            except (ValueError, LightningStoreError) as error:
                if not start:
                    raise
                raise type(error)(f"{error} (the first {start} of {len(items)} had been written)") from error
            if start + ROWS_AT_ONCE < len(items):
                await asyncio.sleep(0)
        return done

    async def handles(self, call: str, arguments: Mapping[str, Any]) -> tuple[Kind, PaginatedResult[Any]]:
        """Return what one of the query methods would, with a small handle in place of each item, which `items` takes.

        A page of any length is read so in slices, whatever is written meanwhile.
        """
        kinds: list[Kind] = []
        token = _handles_of.set(kinds)
        try:
            page = await getattr(self, call)(**arguments)
        finally:
            _handles_of.reset(token)
        return kinds[0], page

    async def items(self, kind: Kind, handles: Sequence[Any]) -> list[Any]:
        """Return the items of some of the handles that `handles` has given, but for those deleted since."""
        return await self._read(lambda ledger: ledger.tables.items(kind, handles))

    async def _select(self, kind: Kind, asked: dict[str, Any], **scope: str | None) -> PaginatedResult[Any]:
        """Return the page that the arguments of a query ask for, within a scope that always applies."""
        order = {name: asked.pop(name) for name in ("sort_by", "sort_order", "limit", "offset")}
        logic = asked.pop("filter_logic", "and")
        query = Query(kind, conditions(scope), conditions(asked), logic, **order)
        kinds = _handles_of.get()
        if kinds is not None:
            kinds.append(kind)
            return await self._read(lambda ledger: ledger.tables.handles(query))
        return await self._read(lambda ledger: ledger.tables.select(query))

    async def _look_patiently(self, operation: Callable[[Ledger], T], end: float) -> tuple[T, float]:
        """Call `_look` until the store's server answers: for a while, and not past `end` (`time.monotonic`)."""
        give_up = min(end, time.monotonic() + _AWAY_SECONDS)
        while True:
            try:
                return await self._look(operation)
            except StoreUnreachableError:
                if time.monotonic() >= give_up:
                    raise
                await asyncio.sleep(_RETRY_SECONDS)

    async def _look(self, operation: Callable[[Ledger], T]) -> tuple[T, float]:
        """Return the answer now, and the time (of `time.monotonic`) at which an attempt may next pass a limit."""
        if self._clock.jumped() or await self._read(has_overdue):
            await self._write(lambda ledger: None, check_health=True)
        answer, deadline = await self._read(lambda ledger: (operation(ledger), ledger.tables.next_deadline()))
        return answer, FOR_EVER if deadline is None else monotonic_of(deadline)


def _written(write: Callable[[Ledger, Sequence[U]], list[T]], items: Sequence[U], ledger: Ledger) -> list[T]:
    return write(ledger, items)


def has_overdue(ledger: Ledger) -> bool:
    """Return True if an attempt may have passed a limit without having been marked."""
    deadline = ledger.tables.next_deadline()
    return deadline is not None and deadline <= time.time()


FOR_EVER: Final = float("inf")


class Listener:
    """One waiting coroutine, bound to the event loop that opened it."""

    def __init__(self, *, work: bool, rollout_ids: Iterable[str]) -> None:
        self._loop = asyncio.get_running_loop()
        self._woken = asyncio.Event()
        self.until = FOR_EVER
        self.work = work
        self.missing = set(rollout_ids)

    def wake(self) -> None:
        """Make `wait` return; callable from any thread."""
        with contextlib.suppress(RuntimeError):  # its event loop is closed, so it does not wait any more
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
        """Wake the listeners that wait for one of the changes."""
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
        """Note that the listener has seen these rollouts ended; wake it if they were the last ones missing."""
        with self._lock:
            listener.missing.difference_update(ended)
            if not listener.missing:
                listener.wake()

    def missing(self) -> set[str]:
        """Return the ids of the rollouts for whose end a caller waits."""
        with self._lock:
            return set().union(*(listener.missing for listener in self._listeners))

    @property
    def anybody(self) -> bool:
        """True if there is a listener."""
        return bool(self._listeners)


def monotonic_of(wall_time: float) -> float:
    """Convert seconds since the epoch to seconds of `time.monotonic`."""
    return time.monotonic() + wall_time - time.time()
