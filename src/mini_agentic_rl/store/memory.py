"""The store in memory: for one process, with any number of threads and event loops, without copies.

Objects that come out are the very objects that the store holds, and spans and tasks are held as they were given. The
store never changes one in place: it replaces it, so a snapshot stays what it was. Callers must not change them either.
The cost of an operation does not grow with the number of rollouts.
"""

from __future__ import annotations

import heapq
import logging
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, dropwhile, islice, takewhile
from typing import Any, Final, TypeVar

from ..types import Attempt, PaginatedResult, ResourcesUpdate, Rollout, RolloutStatus, Span, Worker
from . import lifecycle
from .base import LightningStoreCapabilities, LightningStoreStatistics, reward_candidates
from .ledger import Changes, Ledger
from .ledger_store import LedgerStore
from .tables import MOST_OUTCOMES, Kind, Query, WalkStep

T = TypeVar("T")

logger = logging.getLogger(__name__)


class InMemoryLightningStore(LedgerStore):
    """Store that lives as long as its process.

    Args:
        scan_debounce_seconds: Attempts are checked against their limits at most this often by ordinary calls. 0: by
            every call; that costs next to nothing here. Waiting calls check whenever a limit is reached.
        thread_safe: Taken, and of no effect: it always is.
        eviction_memory_threshold, safe_memory_threshold, span_size_estimator, tracker: Agent-lightning's limits of
            memory, and its measurements. They have no effect: no span is ever thrown away to make room. A
            `SqlLightningStore` holds what memory does not.
    """

    def __init__(
        self,
        *,
        scan_debounce_seconds: float = 0.0,
        thread_safe: bool = True,
        eviction_memory_threshold: float | None = None,
        safe_memory_threshold: float | None = None,
        span_size_estimator: Callable[[Span], int] | None = None,
        tracker: Any = None,
    ) -> None:
        super().__init__()
        unused = {
            "eviction_memory_threshold": eviction_memory_threshold,
            "safe_memory_threshold": safe_memory_threshold,
            "span_size_estimator": span_size_estimator,
            "tracker": tracker,
        }
        for name, value in unused.items():
            if value is not None:
                logger.warning("InMemoryLightningStore(%s=…) has no effect: spans are never thrown away here", name)
        self._scan_debounce_seconds = scan_debounce_seconds
        self._last_scan = float("-inf")
        self._lock = threading.Lock()
        self._ledger = Ledger(MemoryTables())

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        return LightningStoreCapabilities(thread_safe=True, async_safe=True, zero_copy=False, otlp_traces=False)

    async def _write(self, operation: Callable[[Ledger], T], *, check_health: bool = False, rows: int = 1) -> T:
        return self._run(operation, check_health)

    async def _read(self, operation: Callable[[Ledger], T]) -> T:
        return self._run(operation, False)

    def _run(self, operation: Callable[[Ledger], T], check_health: bool) -> T:
        ledger = self._ledger
        with self._lock:
            try:
                jumped = self._clock.jumped()
                if ledger.tables.next_deadline() is not None:
                    self._check_health(check_health or jumped)
                return operation(ledger)
            finally:
                if ledger.changes:
                    self._notifier.announce(ledger.changes)
                    ledger.changes = Changes()

    def _check_health(self, forced: bool) -> None:
        now = time.monotonic()
        if forced or now - self._last_scan >= self._scan_debounce_seconds:
            self._last_scan = now
            self._ledger.check_health(self._clock.look_for_scan())


_MOST_OUTCOME_BYTES: Final = 64 * 1024 * 1024
_ENTRY_BYTES: Final = 200
"""What an entry of an ordered dictionary takes beside its key and value."""


class _AttemptRow:
    """Attempt with its spans, in the order in which they came."""

    __slots__ = ("attempt", "deadline", "due", "last_number", "spans")

    def __init__(self, attempt: Attempt) -> None:
        self.attempt = attempt
        self.spans: dict[str, Span] = {}
        self.last_number = 0
        self.deadline: float | None = None
        """Earliest time for which the heap has an entry of this attempt."""
        self.due: float | None = None
        """Deadline that the ledger gave it last."""


class _RolloutRow:
    """Rollout with its attempts, oldest first, and the spans of all of them in the order in which they came."""

    __slots__ = ("attempts", "number", "rollout", "spans")

    def __init__(self, rollout: Rollout, number: int) -> None:
        self.rollout = rollout
        self.number = number
        self.attempts: dict[str, _AttemptRow] = {}
        self.spans: list[Span] = []

    @property
    def latest(self) -> Attempt | None:
        return next(reversed(self.attempts.values())).attempt if self.attempts else None


class MemoryTables:
    """Tables of `InMemoryLightningStore`: dictionaries, an ordered queue, a heap of deadlines.

    The caller holds the lock.
    """

    def __init__(self) -> None:
        self._rollouts: dict[str, _RolloutRow] = {}
        self._by_status: dict[RolloutStatus, dict[str, None]] = {}
        self._queue: OrderedDict[str, None] = OrderedDict()
        self._deadlines: list[tuple[float, str, str]] = []
        self._resources: dict[str, ResourcesUpdate] = {}
        self._latest_resources: ResourcesUpdate | None = None
        self._workers: dict[str, Worker] = {}
        self._outcomes: OrderedDict[str, str] = OrderedDict()
        self._outcome_bytes = 0
        self._rollout_number = 0
        self._attempt_count = 0
        self._span_count = 0

    def rollout(self, rollout_id: str) -> tuple[Rollout, Attempt | None] | None:
        row = self._rollouts.get(rollout_id)
        return None if row is None else (row.rollout, row.latest)

    def queued(self, limit: int) -> Sequence[tuple[Rollout, Attempt | None]]:
        rows = [self._rollouts[rollout_id] for rollout_id in islice(self._queue, limit)]
        return [(row.rollout, row.latest) for row in rows]

    def has_queued(self) -> bool:
        return bool(self._queue)

    def insert_rollouts(self, rollouts: Sequence[Rollout]) -> None:
        for rollout in rollouts:
            self._rollouts[rollout.rollout_id] = _RolloutRow(rollout, self._rollout_number)
            self._rollout_number += 1
            self._enter(rollout)

    def replace_rollout(self, old: Rollout, new: Rollout) -> None:
        self._rollouts[new.rollout_id].rollout = new
        if new.status != old.status:
            del self._by_status[old.status][old.rollout_id]
            if new.status not in lifecycle.QUEUED_STATUSES:
                self._queue.pop(new.rollout_id, None)
            self._enter(new)

    def delete_rollout(self, rollout_id: str) -> bool:
        row = self._rollouts.pop(rollout_id, None)
        if row is None:
            return False
        del self._by_status[row.rollout.status][rollout_id]
        self._queue.pop(rollout_id, None)
        self._attempt_count -= len(row.attempts)
        self._span_count -= len(row.spans)
        return True

    def attempt(self, rollout_id: str, attempt_id: str) -> Attempt | None:
        row = self._attempt_row(rollout_id, attempt_id)
        return None if row is None else row.attempt

    def insert_attempt(self, attempt: Attempt, deadline: float | None) -> None:
        row = _AttemptRow(attempt)
        attempts = self._rollouts[attempt.rollout_id].attempts
        row.last_number = max((earlier.last_number for earlier in attempts.values()), default=0)
        attempts[attempt.attempt_id] = row
        self._attempt_count += 1
        self._watch(row, deadline)

    def replace_attempt(self, attempt: Attempt, deadline: float | None) -> None:
        row = self._rollouts[attempt.rollout_id].attempts[attempt.attempt_id]
        row.attempt = attempt
        self._watch(row, deadline)

    def overdue(self, now: float) -> Sequence[tuple[str, str]]:
        found = []
        while self._deadlines and self._deadlines[0][0] <= now:
            entered, rollout_id, attempt_id = heapq.heappop(self._deadlines)
            row = self._attempt_row(rollout_id, attempt_id)
            if row is None or row.deadline != entered:
                continue  # it was deleted, or an earlier entry took its place
            row.deadline = None
            if row.due is not None and row.due <= now:
                found.append((rollout_id, attempt_id))
            else:
                self._watch(row, row.due)
        return found

    def next_deadline(self) -> float | None:
        return self._deadlines[0][0] if self._deadlines else None

    def take_span_numbers(self, rollout_id: str, attempt_id: str, count: int) -> int | None:
        row = self._attempt_row(rollout_id, attempt_id)
        if row is None:
            return None
        first = row.last_number + 1
        row.last_number += count
        return first

    def insert_spans(self, rollout_id: str, attempt_id: str, spans: Sequence[Span]) -> Sequence[Span]:
        rollout = self._rollouts[rollout_id]
        row = rollout.attempts[attempt_id]
        stored = []
        for span in spans:
            if span.span_id not in row.spans:
                row.spans[span.span_id] = span
                stored.append(span)
                if span.sequence_id > row.last_number:
                    row.last_number = span.sequence_id
        rollout.spans.extend(stored)
        self._span_count += len(stored)
        return stored

    def latest_resources(self) -> ResourcesUpdate | None:
        return self._latest_resources

    def resources(self, resources_id: str) -> ResourcesUpdate | None:
        return self._resources.get(resources_id)

    def write_resources(self, update: ResourcesUpdate) -> None:
        self._resources[update.resources_id] = self._latest_resources = update

    def worker(self, worker_id: str) -> Worker | None:
        return self._workers.get(worker_id)

    def write_worker(self, worker: Worker) -> None:
        self._workers[worker.worker_id] = worker

    def select(self, query: Query) -> PaginatedResult[Any]:
        if query.kind == "rollout":
            page = self._rollout_page(query)
            items = [lifecycle.with_attempt(row.rollout, row.latest) for row in page.items]
            return PaginatedResult.model_construct(items=items, limit=page.limit, offset=page.offset, total=page.total)
        if query.kind == "resources":
            return query.page(self._resources.values())
        if query.kind == "worker":
            return query.page(self._workers.values())
        rollouts = [self._rollouts[i] for i in query.required("rollout_id") or () if i in self._rollouts]
        wanted = query.required("attempt_id")
        if wanted is None and query.kind == "span":
            return query.page(chain.from_iterable(row.spans for row in rollouts))
        attempts = [attempt for row in rollouts for i, attempt in row.attempts.items() if wanted is None or i in wanted]
        if query.kind == "attempt":
            return query.page(row.attempt for row in attempts)
        return query.page(chain.from_iterable(row.spans.values() for row in attempts))

    def handles(self, query: Query) -> PaginatedResult[Any]:
        return self.select(query)

    def items(self, kind: Kind, handles: Sequence[Any]) -> list[Any]:
        return list(handles)

    def walk(self, step: WalkStep) -> Sequence[Rollout] | None:
        start = None if step.beyond is None else self._rollouts.get(step.beyond)
        if start is None and step.beyond is not None:
            return None
        rows = self._rows_beyond(None if start is None else start.number, step)
        return [lifecycle.with_attempt(row.rollout, row.latest) for row in islice(rows, step.limit)]

    def reward_spans(self, rollout_ids: Sequence[str]) -> Sequence[Span]:
        found: list[Span] = []
        for rollout_id in dict.fromkeys(rollout_ids):
            row = self._rollouts.get(rollout_id)
            if row is not None and row.attempts:
                spans = reward_candidates(next(reversed(row.attempts.values())).spans.values())
                found += sorted(spans, key=lambda span: span.sequence_id)
        return found

    def ended(self, rollout_ids: Sequence[str]) -> tuple[Sequence[Rollout], Sequence[str]]:
        rows = [self._rollouts.get(rollout_id) for rollout_id in rollout_ids]
        unknown = [rollout_id for rollout_id, row in zip(rollout_ids, rows, strict=True) if row is None]
        ended = [row for row in rows if row is not None and lifecycle.has_ended(row.rollout)]
        return [lifecycle.with_attempt(row.rollout, row.latest) for row in ended], unknown

    def counts(self) -> LightningStoreStatistics:
        return LightningStoreStatistics(
            total_rollouts=len(self._rollouts),
            total_attempts=self._attempt_count,
            total_spans=self._span_count,
            total_resources=len(self._resources),
            total_workers=len(self._workers),
        )

    def outcome(self, key: str) -> str | None:
        return self._outcomes.get(key)

    def keep_outcome(self, key: str, outcome: str) -> None:
        self._outcomes[key] = outcome
        self._outcome_bytes += _held(key, outcome)
        while len(self._outcomes) > MOST_OUTCOMES or self._outcome_bytes > _MOST_OUTCOME_BYTES:
            self._outcome_bytes -= _held(*self._outcomes.popitem(last=False))

    def _enter(self, rollout: Rollout) -> None:
        self._by_status.setdefault(rollout.status, {})[rollout.rollout_id] = None
        if rollout.status in lifecycle.QUEUED_STATUSES:
            self._queue.setdefault(rollout.rollout_id)

    def _watch(self, row: _AttemptRow, deadline: float | None) -> None:
        row.due = deadline
        if deadline is not None and (row.deadline is None or deadline < row.deadline):
            row.deadline = deadline
            heapq.heappush(self._deadlines, (deadline, row.attempt.rollout_id, row.attempt.attempt_id))

    def _attempt_row(self, rollout_id: str, attempt_id: str) -> _AttemptRow | None:
        row = self._rollouts.get(rollout_id)
        return None if row is None else row.attempts.get(attempt_id)

    def _rollout_page(self, query: Query) -> PaginatedResult[_RolloutRow]:
        statuses = query.required("status")
        conditions = (*query.scope, *query.filters)
        rows = self._rollouts.values()
        ordered: Iterable[_RolloutRow] = reversed(rows) if query.sort_order == "desc" else rows
        if not conditions and query.sort_by is None:  # nothing is looked at but the page
            return query.page_of(ordered, len(rows))
        if statuses is not None and len(conditions) == 1 and query.sort_by is None:
            total = sum(len(self._by_status.get(status, ())) for status in set(statuses))
            if 4 * total >= len(rows):  # many pass: they are nearer in the order of creation than by the index
                return query.page_of((row for row in ordered if row.rollout.status in statuses), total)
        return query.page(self._rollout_candidates(query), key=lambda row: row.rollout)

    def _rows_beyond(self, number: int | None, step: WalkStep) -> Iterable[_RolloutRow]:
        """Return the rows of a walk that went as far as the one of this number."""
        wanted = None if step.statuses is None else frozenset(step.statuses)
        rows: Iterable[_RolloutRow] = self._rollouts.values()
        if wanted is not None and 4 * sum(len(self._by_status.get(status, ())) for status in wanted) < len(
            self._rollouts
        ):
            few = chain.from_iterable(self._by_status.get(status, ()) for status in wanted)
            rows = sorted((self._rollouts[i] for i in few), key=lambda row: row.number, reverse=step.descending)
        elif number is None:
            rows = reversed(self._rollouts.values()) if step.descending else rows
        else:
            deleted = self._rollout_number - len(self._rollouts)
            after = self._rollout_number - number
            if step.descending:
                rows = islice(reversed(self._rollouts.values()), max(0, after - 1 - deleted), None)
            elif after > number:
                rows = islice(rows, max(0, number - deleted), None)
            else:  # it is nearer from the end
                later = takewhile(lambda row: row.number > number, reversed(self._rollouts.values()))
                rows = reversed(list(later))
        if number is not None:
            passed = (lambda row: row.number >= number) if step.descending else (lambda row: row.number <= number)
            rows = dropwhile(passed, rows)
        return rows if wanted is None else (row for row in rows if row.rollout.status in wanted)

    def _rollout_candidates(self, query: Query) -> Iterable[_RolloutRow]:
        """Return the rows that may match, in the order of creation, from the narrowest index that applies."""
        ids: Iterable[str] | None = query.required("rollout_id")
        statuses = query.required("status")
        if ids is None and statuses is not None:
            ids = chain.from_iterable(self._by_status.get(status, ()) for status in statuses)
        if ids is None:
            return self._rollouts.values()
        found = {rollout_id: self._rollouts[rollout_id] for rollout_id in ids if rollout_id in self._rollouts}
        return sorted(found.values(), key=lambda row: row.number)


def _held(key: str, outcome: str) -> int:
    return sys.getsizeof(key) + sys.getsizeof(outcome) + _ENTRY_BYTES
