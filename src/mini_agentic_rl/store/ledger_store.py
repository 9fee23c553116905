"""The store contract on top of a ledger. A storage adds only how a transaction is run."""

from __future__ import annotations

import asyncio
import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, TypeVar

from ..types import (
    Attempt,
    AttemptedRollout,
    AttemptStatus,
    EnqueueRolloutRequest,
    NamedResources,
    PaginatedResult,
    ResourcesUpdate,
    Rollout,
    RolloutConfig,
    RolloutMode,
    RolloutStatus,
    Span,
    TaskInput,
    Worker,
    WorkerStatus,
)
from . import lifecycle
from .base import UNSET, LightningStore, LightningStoreStatistics, StoreUnreachableError, Unset
from .ledger import Ledger
from .storage import Condition, Query, conditions
from .waiting import FOR_EVER, Notifier, monotonic_of

T = TypeVar("T")
Order = Literal["asc", "desc"]
Logic = Literal["and", "or"]

_AWAY_SECONDS: Final = 30.0
"""Seconds for which a waiting call tries a server that does not answer: about as long as a restart takes."""
_RETRY_SECONDS: Final = 0.2


class LedgerStore(LightningStore):
    """Base of the stores that keep the data themselves."""

    def __init__(self) -> None:
        self._notifier = Notifier()
        self._opened = time.monotonic()

    @abstractmethod
    async def _write(self, operation: Callable[[Ledger], T], *, check_health: bool = False) -> T:
        """Run `operation` in a transaction: all of it or nothing, unseen by others until it is whole.

        Attempts past their limits are marked first, if that was not done a short while ago or `check_health` is set.
        The ledger's `changes` are announced after the transaction.
        """

    @abstractmethod
    async def _read(self, operation: Callable[[Ledger], T]) -> T:
        """Run an operation that changes nothing; attempts past their limits are marked first as for `_write`."""

    async def statistics(self) -> LightningStoreStatistics:
        counts = await self._read(lambda ledger: ledger.tables.counts())
        statistics = LightningStoreStatistics(name=type(self).__name__, uptime=time.monotonic() - self._opened)
        statistics.update(counts)
        return statistics

    async def start_rollout(
        self,
        input: TaskInput,
        mode: RolloutMode | None = None,
        resources_id: str | None = None,
        config: RolloutConfig | None = None,
        metadata: dict[str, Any] | None = None,
        worker_id: str | None = None,
    ) -> AttemptedRollout:
        request = EnqueueRolloutRequest(
            input=input, mode=mode, resources_id=resources_id, config=config, metadata=metadata
        )
        return await self._write(lambda ledger: ledger.start_rollout(request, worker_id))

    async def enqueue_many_rollouts(self, rollouts: Sequence[EnqueueRolloutRequest]) -> Sequence[Rollout]:
        return await self._write(lambda ledger: ledger.enqueue(rollouts))

    async def dequeue_many_rollouts(
        self, *, limit: int = 1, worker_id: str | None = None
    ) -> Sequence[AttemptedRollout]:
        return await self._write(lambda ledger: ledger.dequeue(limit, worker_id))

    async def wait_for_work(self, timeout: float) -> bool:
        end = time.monotonic() + timeout
        with self._notifier.listen(work=True) as listener:
            while True:
                queued, deadline = await self._look_patiently(lambda ledger: ledger.tables.has_queued(), end)
                if queued or time.monotonic() >= end:
                    return queued
                await listener.wait(min(end, deadline))

    async def start_attempt(self, rollout_id: str, worker_id: str | None = None) -> AttemptedRollout:
        return await self._write(lambda ledger: ledger.start_attempt(rollout_id, worker_id))

    async def add_many_spans(self, spans: Sequence[Span]) -> Sequence[Span]:
        return await self._write(lambda ledger: ledger.add_spans(spans))

    async def get_many_span_sequence_ids(self, rollout_attempt_ids: Sequence[tuple[str, str]]) -> Sequence[int]:
        return await self._write(lambda ledger: ledger.span_numbers(rollout_attempt_ids))

    async def query_rollouts(
        self,
        *,
        status_in: Sequence[RolloutStatus] | None = None,
        rollout_id_in: Sequence[str] | None = None,
        rollout_id_contains: str | None = None,
        filter_logic: Logic = "and",
        sort_by: str | None = None,
        sort_order: Order = "asc",
        limit: int = -1,
        offset: int = 0,
        status: Sequence[RolloutStatus] | None = None,
        rollout_ids: Sequence[str] | None = None,
    ) -> PaginatedResult[Rollout]:
        filters = conditions(
            one_of={
                "status": status if status_in is None else status_in,
                "rollout_id": rollout_ids if rollout_id_in is None else rollout_id_in,
            },
            contains={"rollout_id": rollout_id_contains},
        )
        return await self._select(Query("rollout", (), filters, filter_logic, sort_by, sort_order, limit, offset))

    async def get_rollout_by_id(self, rollout_id: str) -> Rollout | None:
        found = await self._read(lambda ledger: ledger.tables.rollout(rollout_id))
        return None if found is None else lifecycle.with_attempt(*found)

    async def query_attempts(
        self,
        rollout_id: str,
        *,
        sort_by: str | None = "sequence_id",
        sort_order: Order = "asc",
        limit: int = -1,
        offset: int = 0,
    ) -> PaginatedResult[Attempt]:
        scope = conditions({"rollout_id": rollout_id})
        return await self._select(Query("attempt", scope, (), "and", sort_by, sort_order, limit, offset))

    async def get_latest_attempt(self, rollout_id: str) -> Attempt | None:
        found = await self._read(lambda ledger: ledger.tables.rollout(rollout_id))
        return None if found is None else found[1]

    async def query_spans(
        self,
        rollout_id: str,
        attempt_id: str | Literal["latest"] | None = None,
        *,
        trace_id: str | None = None,
        trace_id_contains: str | None = None,
        span_id: str | None = None,
        span_id_contains: str | None = None,
        parent_id: str | None = None,
        parent_id_contains: str | None = None,
        name: str | None = None,
        name_contains: str | None = None,
        filter_logic: Logic = "and",
        sort_by: str | None = "sequence_id",
        sort_order: Order = "asc",
        limit: int = -1,
        offset: int = 0,
    ) -> PaginatedResult[Span]:
        filters = conditions(
            equals={"trace_id": trace_id, "span_id": span_id, "parent_id": parent_id, "name": name},
            contains={
                "trace_id": trace_id_contains,
                "span_id": span_id_contains,
                "parent_id": parent_id_contains,
                "name": name_contains,
            },
        )
        if attempt_id == "latest":
            latest = await self.get_latest_attempt(rollout_id)
            attempt_id = "" if latest is None else latest.attempt_id
        scope: tuple[Condition, ...] = conditions({"rollout_id": rollout_id, "attempt_id": attempt_id})
        return await self._select(Query("span", scope, filters, filter_logic, sort_by, sort_order, limit, offset))

    async def update_rollout(
        self,
        rollout_id: str,
        input: TaskInput | Unset = UNSET,
        mode: RolloutMode | Unset | None = UNSET,
        resources_id: str | Unset | None = UNSET,
        status: RolloutStatus | Unset = UNSET,
        config: RolloutConfig | Unset = UNSET,
        metadata: dict[str, Any] | Unset | None = UNSET,
    ) -> Rollout:
        return await self._write(
            lambda ledger: ledger.update_rollout(
                rollout_id,
                input=input,
                mode=mode,
                resources_id=resources_id,
                status=status,
                config=config,
                metadata=metadata,
            )
        )

    async def update_attempt(
        self,
        rollout_id: str,
        attempt_id: str | Literal["latest"],
        status: AttemptStatus | Unset = UNSET,
        worker_id: str | Unset = UNSET,
        last_heartbeat_time: float | Unset = UNSET,
        metadata: dict[str, Any] | Unset | None = UNSET,
    ) -> Attempt:
        return await self._write(
            lambda ledger: ledger.update_attempt(
                rollout_id,
                attempt_id,
                status,
                worker_id=worker_id,
                last_heartbeat_time=last_heartbeat_time,
                metadata=metadata,
            )
        )

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
        return await self._write(lambda ledger: ledger.write_resources(resources))

    async def update_resources(self, resources_id: str, resources: NamedResources) -> ResourcesUpdate:
        return await self._write(lambda ledger: ledger.write_resources(resources, resources_id))

    async def query_resources(
        self,
        *,
        resources_id: str | None = None,
        resources_id_contains: str | None = None,
        sort_by: str | None = None,
        sort_order: Order = "asc",
        limit: int = -1,
        offset: int = 0,
    ) -> PaginatedResult[ResourcesUpdate]:
        filters = conditions({"resources_id": resources_id}, {"resources_id": resources_id_contains})
        return await self._select(Query("resources", (), filters, "and", sort_by, sort_order, limit, offset))

    async def get_resources_by_id(self, resources_id: str) -> ResourcesUpdate | None:
        return await self._read(lambda ledger: ledger.tables.resources(resources_id))

    async def get_latest_resources(self) -> ResourcesUpdate | None:
        return await self._read(lambda ledger: ledger.tables.latest_resources())

    async def update_worker(self, worker_id: str, heartbeat_stats: dict[str, Any] | Unset = UNSET) -> Worker:
        return await self._write(lambda ledger: ledger.update_worker(worker_id, heartbeat_stats))

    async def query_workers(
        self,
        *,
        status_in: Sequence[WorkerStatus] | None = None,
        worker_id_contains: str | None = None,
        filter_logic: Logic = "and",
        sort_by: str | None = None,
        sort_order: Order = "asc",
        limit: int = -1,
        offset: int = 0,
    ) -> PaginatedResult[Worker]:
        filters = conditions(one_of={"status": status_in}, contains={"worker_id": worker_id_contains})
        return await self._select(Query("worker", (), filters, filter_logic, sort_by, sort_order, limit, offset))

    async def get_worker_by_id(self, worker_id: str) -> Worker | None:
        return await self._read(lambda ledger: ledger.tables.worker(worker_id))

    async def _select(self, query: Query) -> PaginatedResult[Any]:
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
        if await self._read(has_overdue):
            await self._write(lambda ledger: None, check_health=True)
        answer, deadline = await self._read(lambda ledger: (operation(ledger), ledger.tables.next_deadline()))
        return answer, FOR_EVER if deadline is None else monotonic_of(deadline)


def has_overdue(ledger: Ledger) -> bool:
    """Return True if an attempt may have passed a limit without having been marked."""
    deadline = ledger.tables.next_deadline()
    return deadline is not None and deadline <= time.time()
