"""The store in memory: for one process, with any number of threads and event loops, without copies.

The store keeps and returns the objects themselves. It never changes an object in place, it replaces it, and callers
must not change one either. The cost of an operation does not grow with the number of rollouts.
"""

from __future__ import annotations

import heapq
import logging
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import chain, dropwhile, islice
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ..types import Attempt, PaginatedResult, ResourcesUpdate, Rollout, RolloutStatus, Span, Worker
from . import lifecycle
from .base import LightningStoreCapabilities, LightningStoreStatistics
from .ledger import Changes, Ledger
from .ledger_store import LedgerStore
from .listing import GroupPage, RolloutFilter, RolloutGroup, RolloutPage, step_and_group, stored_reward
from .tables import MOST_OUTCOMES, Kind, Query, body_json

if TYPE_CHECKING:
    from _collections_abc import dict_values

T = TypeVar("T")

logger = logging.getLogger(__name__)


class InMemoryLightningStore(LedgerStore):
    """Store that lives as long as its process.

    Args:
        scan_debounce_seconds: Ordinary calls check attempts against their limits at most this often. 0: every call
            does, which is cheap here. Waiting calls check whenever a limit is reached.
        thread_safe: No effect: the store is always thread-safe.
        eviction_memory_threshold, safe_memory_threshold, span_size_estimator, tracker: Arguments of agent-lightning.
            They have no effect: no span is evicted. A `SqlLightningStore` holds more than memory.
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
                    now = time.monotonic()
                    if check_health or jumped or now - self._last_scan >= self._scan_debounce_seconds:
                        complete = ledger.check_health(self._clock.look_for_scan())
                        self._last_scan = now if complete else float("-inf")
                return operation(ledger)
            finally:
                if ledger.changes:
                    self._notifier.announce(ledger.changes)
                    ledger.changes = Changes()


_MOST_OUTCOME_BYTES: Final = 64 * 1024 * 1024
_LIST_SECONDS: Final = 0.01
"""Time after which a page of a listing ends: nobody else uses the store meanwhile."""
_ENTRY_BYTES: Final = 200
"""Bytes of an entry of an ordered dictionary without its key and value."""


class _AttemptRow:
    """Attempt with its spans, in the order of their arrival."""

    __slots__ = ("attempt", "deadline", "due", "last_number", "reward", "reward_number", "spans")

    def __init__(self, attempt: Attempt) -> None:
        self.attempt = attempt
        self.reward: float | None = None
        """Reward of the reward span with the greatest sequence id, which is `reward_number`."""
        self.reward_number = -1
        self.spans: dict[str, Span] = {}
        self.last_number = 0
        self.deadline: float | None = None
        """Time of the earliest entry of this attempt in the heap."""
        self.due: float | None = None
        """Deadline that the ledger set last."""


class _RolloutRow:
    """Rollout with its attempts, oldest first, and all their spans in the order of arrival."""

    __slots__ = ("attempts", "number", "rollout", "spans")

    def __init__(self, rollout: Rollout, number: int) -> None:
        self.rollout = rollout
        self.number = number
        self.attempts: dict[str, _AttemptRow] = {}
        self.spans: list[Span] = []

    @property
    def latest(self) -> Attempt | None:
        return next(reversed(self.attempts.values())).attempt if self.attempts else None

    @property
    def reward(self) -> float | None:
        return next(reversed(self.attempts.values())).reward if self.attempts else None


class MemoryTables:
    """Tables of `InMemoryLightningStore`: dictionaries, an ordered queue, a heap of deadlines.

    The caller holds the lock.
    """

    def __init__(self) -> None:
        self._rollouts: dict[str, _RolloutRow] = {}
        self._by_status: dict[RolloutStatus, dict[str, None]] = {}
        self._groups: dict[str, dict[str, None]] = {}
        """Ids of the rollouts of each group, oldest first."""
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
            self._enter_group(rollout)

    def replace_rollout(self, old: Rollout, new: Rollout) -> None:
        self._rollouts[new.rollout_id].rollout = new
        if step_and_group(new.metadata) != step_and_group(old.metadata):
            self._leave_group(old)
            self._enter_group(new)
        if new.status != old.status:
            del self._by_status[old.status][old.rollout_id]
            if new.status not in lifecycle.QUEUED_STATUSES:
                self._queue.pop(new.rollout_id, None)
            self._enter(new)

    def delete_spans(self, rollout_id: str, limit: int) -> int:
        return 0  # `delete_rollout` takes the same time for any number of spans

    def delete_rollout(self, rollout_id: str) -> None:
        row = self._rollouts.pop(rollout_id)
        self._leave_group(row.rollout)
        del self._by_status[row.rollout.status][rollout_id]
        self._queue.pop(rollout_id, None)
        self._attempt_count -= len(row.attempts)
        self._span_count -= len(row.spans)

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

    def overdue(self, now: float, limit: int) -> Sequence[tuple[str, str]]:
        overdue: list[tuple[str, str]] = []
        while len(overdue) < limit and self._deadlines and self._deadlines[0][0] <= now:
            entered, rollout_id, attempt_id = heapq.heappop(self._deadlines)
            row = self._attempt_row(rollout_id, attempt_id)
            if row is None or row.deadline != entered:
                continue  # the attempt was deleted, or has an earlier entry
            row.deadline = None
            if row.due is not None and row.due <= now:
                overdue.append((rollout_id, attempt_id))
            else:
                self._watch(row, row.due)
        return overdue

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
                reward = stored_reward(span.name, span.attributes)
                if reward is not None and span.sequence_id >= row.reward_number:
                    row.reward, row.reward_number = reward, span.sequence_id
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

    def list_rollouts(self, wanted: RolloutFilter, before: int | None, limit: int) -> RolloutPage:
        items: list[Rollout] = []
        rewards: list[float | None] = []
        end, most = time.monotonic() + _LIST_SECONDS, wanted.max_examined(limit)
        position = None
        for examined, row in enumerate(self._newest_rows(wanted, before)):
            if len(items) == limit or examined == most or (examined and time.monotonic() > end):
                return RolloutPage.model_construct(items=items, rewards=rewards, next=position)
            position = row.number
            rollout, attempt, reward = row.rollout, row.latest, row.reward
            if wanted.matches(rollout, attempt, reward) and wanted.text_found(rollout, attempt, map(_text, row.spans)):
                items.append(lifecycle.with_attempt(rollout, attempt))
                rewards.append(reward)
        return RolloutPage.model_construct(items=items, rewards=rewards, next=None)

    def _newest_rows(self, wanted: RolloutFilter, before: int | None) -> Iterable[_RolloutRow]:
        """Return the rows below a position that a filter may match, the newest first."""
        rows = self._rows(statuses=wanted.status_in, group=wanted.group)
        newest: Iterable[_RolloutRow] = reversed(rows)
        if before is None:
            return newest
        if len(rows) == len(self._rollouts):
            deleted = self._rollout_number - len(rows)
            newest = islice(newest, max(0, self._rollout_number - before - deleted), None)
        return dropwhile(lambda row: row.number >= before, newest)

    def list_groups(self, before: int | None, limit: int) -> GroupPage:
        firsts = ((self._rollouts[next(iter(ids))].number, name) for name, ids in self._groups.items())
        chosen = heapq.nlargest(limit + 1, (first for first in firsts if before is None or first[0] < before))
        groups = []
        for _, name in chosen[:limit]:
            rows = [self._rollouts[rollout_id] for rollout_id in self._groups[name]]
            step, _ = step_and_group(rows[0].rollout.metadata)
            rewards = [row.reward for row in rows]
            groups.append(
                RolloutGroup.model_construct(group=name, step=step, rewards=rewards, input=rows[0].rollout.input)
            )
        return GroupPage.model_construct(items=groups, next=chosen[limit - 1][0] if len(chosen) > limit else None)

    def ended(self, rollout_ids: Sequence[str]) -> tuple[Sequence[Rollout], Sequence[str]]:
        rows = [self._rollouts.get(rollout_id) for rollout_id in rollout_ids]
        unknown = [rollout_id for rollout_id, row in zip(rollout_ids, rows, strict=True) if row is None]
        ended = [row for row in rows if row is not None and lifecycle.has_ended(row.rollout)]
        return [lifecycle.with_attempt(row.rollout, row.latest) for row in ended], unknown

    def counts(self) -> LightningStoreStatistics:
        return LightningStoreStatistics(
            total_rollouts=len(self._rollouts),
            rollouts_by_status={status: len(ids) for status, ids in self._by_status.items() if ids},
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

    def _enter_group(self, rollout: Rollout) -> None:
        _, group = step_and_group(rollout.metadata)
        if group is not None:
            self._groups.setdefault(group, {})[rollout.rollout_id] = None

    def _leave_group(self, rollout: Rollout) -> None:
        _, group = step_and_group(rollout.metadata)
        if group is not None:
            del self._groups[group][rollout.rollout_id]
            if not self._groups[group]:
                del self._groups[group]

    def _watch(self, row: _AttemptRow, deadline: float | None) -> None:
        row.due = deadline
        if deadline is not None and (row.deadline is None or deadline < row.deadline):
            row.deadline = deadline
            heapq.heappush(self._deadlines, (deadline, row.attempt.rollout_id, row.attempt.attempt_id))

    def _attempt_row(self, rollout_id: str, attempt_id: str) -> _AttemptRow | None:
        row = self._rollouts.get(rollout_id)
        return None if row is None else row.attempts.get(attempt_id)

    def _rows(
        self,
        ids: Iterable[str] | None = None,
        statuses: Collection[RolloutStatus] | None = None,
        group: str | None = None,
    ) -> dict_values[str, _RolloutRow] | list[_RolloutRow]:
        """Return the rows that may match, in the order of creation, from the narrowest index; None is no condition."""
        if ids is None and group is not None:
            ids = self._groups.get(group, ())
        elif ids is None and statuses is not None:
            with_status = [self._by_status.get(status, {}) for status in set(statuses)]
            if 4 * sum(map(len, with_status)) < len(self._rollouts):
                ids = chain.from_iterable(with_status)
        if ids is None:
            return self._rollouts.values()
        rows = {rollout_id: self._rollouts[rollout_id] for rollout_id in ids if rollout_id in self._rollouts}
        return sorted(rows.values(), key=lambda row: row.number)

    def _rollout_page(self, query: Query) -> PaginatedResult[_RolloutRow]:
        ids, statuses = query.required("rollout_id"), query.required("status")
        conditions = len(query.scope) + len(query.filters)
        if query.sort_by is None and conditions == (0 if statuses is None else 1):  # the page ends before all rows
            rows = self._rows(statuses=statuses)
            total = len(rows)
            if statuses is not None:
                total = sum(len(self._by_status.get(status, ())) for status in set(statuses))
            ordered = reversed(rows) if query.sort_order == "desc" else rows
            matching = (row for row in ordered if statuses is None or row.rollout.status in statuses)
            return query.page_of(matching, total)
        if ids is None and statuses is not None:  # all of them are looked at, so none of another status
            ids = list(chain.from_iterable(self._by_status.get(status, ()) for status in statuses))
        return query.page(self._rows(ids), key=lambda row: row.rollout)


def _text(span: Span) -> str:
    try:
        return body_json(span)
    except ValueError:  # a span in memory may hold what is not JSON
        return str(span.attributes)


def _held(key: str, outcome: str) -> int:
    return sys.getsizeof(key) + sys.getsizeof(outcome) + _ENTRY_BYTES
