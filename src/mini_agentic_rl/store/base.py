"""The contract of a store: the only channel between an algorithm and its runners.

Wrappers (threads, HTTP) get their methods from `LightningStore` by the names in `STORE_METHODS`.

Rules of every store:
- The latest attempt drives its rollout. A rollout that succeeded, failed or was cancelled never changes its status.
- For an unknown id a method that changes something raises ValueError, a getter returns None, and a query returns
  nothing.
- Once a method has returned, every later call of any caller sees its change.
- Returned objects are snapshots. Do not change them: a store may share them between callers.
"""

from __future__ import annotations

import asyncio
import enum
import inspect
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, TypedDict

from ..errors import UserError
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
from .listing import GroupPage, RolloutPage

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan


class LightningStoreError(UserError, RuntimeError):
    """The store is locked, full, damaged, closed or of another version; the message says what to do."""


class StorageFailedError(LightningStoreError):
    """The disk of the store is full, or cannot be read or written."""


class StoreUnreachableError(LightningStoreError):
    """The store's server does not answer at the moment."""


class Unset(enum.Enum):
    """Type of `UNSET`."""

    UNSET = "UNSET"

    def __repr__(self) -> str:
        return "UNSET"


UNSET: Final = Unset.UNSET
"""Argument that leaves a field as it is, where None is a value of the field."""

WORKERS_AT_ONCE: Final = 1000
"""Most heartbeats of one call."""


class LightningStoreCapabilities(TypedDict):
    """Properties of a store that callers may rely on."""

    thread_safe: bool
    """True if several threads, each with its own event loop, may call the store."""
    async_safe: bool
    """True if several tasks of one event loop may call the store."""
    zero_copy: bool
    """True if another process may use the store as it is, without a server in between."""
    otlp_traces: bool
    """True if the store takes traces over the OpenTelemetry protocol, at `otlp_traces_endpoint()`."""


class LightningStoreStatistics(TypedDict, total=False):
    """Numbers of items that a store holds."""

    name: str
    total_rollouts: int
    rollouts_by_status: dict[str, int]
    total_attempts: int
    total_spans: int
    total_resources: int
    total_workers: int
    uptime: float
    """Seconds since the store was opened."""


def check_heartbeats(heartbeats: Collection[str]) -> None:
    """Raise a ValueError where there are more than `WORKERS_AT_ONCE`."""
    if len(heartbeats) > WORKERS_AT_ONCE:
        raise ValueError(f"{len(heartbeats)} heartbeats: at most {WORKERS_AT_ONCE} at once")


_WORK_CHECK_SECONDS: Final = 0.1


class LightningStore:
    """Queue of rollouts, record of their attempts and spans, versions of resources, and list of workers.

    A method that a store does not offer raises NotImplementedError.
    """

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        """Return what callers may rely on."""
        return LightningStoreCapabilities(thread_safe=False, async_safe=False, zero_copy=False, otlp_traces=False)

    async def statistics(self) -> LightningStoreStatistics:
        """Return how many rollouts, attempts, spans, resources and workers the store holds."""
        return LightningStoreStatistics(name=type(self).__name__)

    def otlp_traces_endpoint(self) -> str:
        """Return the URL that takes OTLP traces.

        Raises:
            NotImplementedError: the store takes none; see `capabilities["otlp_traces"]`.
        """
        raise NotImplementedError(f"{type(self).__name__} does not take traces over OTLP")

    async def start_rollout(
        self,
        input: TaskInput,
        mode: RolloutMode | None = None,
        resources_id: str | None = None,
        config: RolloutConfig | None = None,
        metadata: dict[str, Any] | None = None,
        worker_id: str | None = None,
        rollout_id: str | None = None,
    ) -> AttemptedRollout:
        """Create a rollout and its first attempt, past the queue; `resources_id` as in `enqueue_rollout`.

        Without a `rollout_id` the store makes one.

        Raises:
            ValueError: there is a rollout of this id.
        """
        raise NotImplementedError

    async def enqueue_rollout(
        self,
        input: TaskInput,
        mode: RolloutMode | None = None,
        resources_id: str | None = None,
        config: RolloutConfig | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> Rollout:
        """Put one rollout at the end of the queue. Without `resources_id` it gets the latest resources."""
        request = EnqueueRolloutRequest(
            input=input, mode=mode, resources_id=resources_id, config=config, metadata=metadata
        )
        return (await self.enqueue_many_rollouts([request]))[0]

    async def enqueue_many_rollouts(self, rollouts: Sequence[EnqueueRolloutRequest]) -> Sequence[Rollout]:
        """Put rollouts at the end of the queue, in this order.

        Long lists are written in parts of `ROWS_AT_ONCE`, between which others write. After an error the earlier parts
        stay, and the message says how many rollouts they have.
        """
        raise NotImplementedError

    async def dequeue_rollout(self, worker_id: str | None = None) -> AttemptedRollout | None:
        """Claim the rollout at the head of the queue and start an attempt of it; None at once if there is none."""
        claimed = await self.dequeue_many_rollouts(limit=1, worker_id=worker_id)
        return claimed[0] if claimed else None

    async def dequeue_many_rollouts(
        self, *, limit: int = 1, worker_id: str | None = None
    ) -> Sequence[AttemptedRollout]:
        """Claim up to `limit` rollouts from the head of the queue, first in, first out, without waiting.

        Each gets a new attempt in status `preparing`; no rollout is claimed twice.
        """
        raise NotImplementedError

    async def wait_for_work(self, timeout: float) -> bool:
        """Wait until the queue is not empty, at most `timeout` seconds; False if it stayed empty.

        After True another worker may still be faster. A store without notifications returns True after a short while.
        """
        await asyncio.sleep(max(0.0, min(timeout, _WORK_CHECK_SECONDS)))
        return True

    async def start_attempt(self, rollout_id: str, worker_id: str | None = None) -> AttemptedRollout:
        """Start another attempt of a rollout, regardless of `max_attempts`; it drives the rollout from now on.

        Raises:
            ValueError: no such rollout, or it has ended.
        """
        raise NotImplementedError

    async def add_span(self, span: Span) -> Span | None:
        """Store a span; return None if the attempt has a span of this `span_id` already.

        A stored span is a heartbeat of its attempt: it moves `preparing` to `running` and revives `unresponsive`.

        Raises:
            ValueError: no such rollout or attempt.
        """
        stored = await self.add_many_spans([span])
        return stored[0] if stored else None

    async def add_many_spans(self, spans: Sequence[Span]) -> Sequence[Span]:
        """Store spans of any attempts, and return those that were new.

        Long lists are stored in parts, as in `enqueue_many_rollouts`.

        A span with `sequence_id` 0 is stored with the next sequence id of its attempt.

        Raises:
            ValueError: a span names no known rollout or attempt; then no span of its part is stored.
        """
        raise NotImplementedError

    async def add_otel_span(
        self, rollout_id: str, attempt_id: str, readable_span: ReadableSpan, sequence_id: int | None = None
    ) -> Span | None:
        """Store an OpenTelemetry span, with the next sequence id of the attempt unless one is given."""
        if sequence_id is None:
            sequence_id = await self.get_next_span_sequence_id(rollout_id, attempt_id)
        return await self.add_span(Span.from_opentelemetry(readable_span, rollout_id, attempt_id, sequence_id))

    async def get_next_span_sequence_id(self, rollout_id: str, attempt_id: str) -> int:
        """Return the next sequence id of the attempt's spans, from 1; `latest` names the rollout's latest attempt.

        No id is given out twice. A later attempt of a rollout continues the ids of the earlier ones.

        Raises:
            ValueError: no such rollout or attempt.
        """
        return (await self.get_many_span_sequence_ids([(rollout_id, attempt_id)]))[0]

    async def get_many_span_sequence_ids(self, rollout_attempt_ids: Sequence[tuple[str, str]]) -> Sequence[int]:
        """Return one sequence id for each (rollout id, attempt id) pair, in order. Pairs may be repeated."""
        raise NotImplementedError

    async def query_rollouts(
        self,
        *,
        status_in: Sequence[RolloutStatus] | None = None,
        rollout_id_in: Sequence[str] | None = None,
        rollout_id_contains: str | None = None,
        filter_logic: Literal["and", "or"] = "and",
        sort_by: str | None = None,
        sort_order: Literal["asc", "desc"] = "asc",
        limit: int = -1,
        offset: int = 0,
        status: Sequence[RolloutStatus] | None = None,
        rollout_ids: Sequence[str] | None = None,
    ) -> PaginatedResult[Rollout]:
        """Return one page of the rollouts that pass the filters, in order of creation unless `sort_by` names a field.

        A rollout with an attempt is returned as `AttemptedRollout` with its latest attempt. `status` and `rollout_ids`
        are older names of `status_in` and `rollout_id_in`. `limit=-1` means no limit.

        Raises:
            ValueError: `sort_by` names no field of a rollout.
        """
        raise NotImplementedError

    async def list_rollouts(
        self,
        *,
        status_in: Sequence[RolloutStatus] | None = None,
        mode: str | None = None,
        step: int | None = None,
        group: str | None = None,
        reward_min: float | None = None,
        reward_max: float | None = None,
        worker_contains: str | None = None,
        input_contains: str | None = None,
        text: str | None = None,
        before: int | None = None,
        limit: int = 100,
    ) -> RolloutPage:
        """Return the newest rollouts that meet all conditions of a `RolloutFilter`, with their rewards.

        Args:
            before: Position below which the page begins: `next` of an earlier page.
            limit: At most `MAX_LISTED`.

        Raises:
            ValueError: `before` or `limit` is out of range.
        """
        raise NotImplementedError

    async def list_groups(self, *, before: int | None = None, limit: int = 100) -> GroupPage:
        """Return the newest groups of rollouts, each with the rewards of all its rollouts.

        Args and Raises: see `list_rollouts`.
        """
        raise NotImplementedError

    async def get_rollout_by_id(self, rollout_id: str) -> Rollout | None:
        """Return the rollout, as an `AttemptedRollout` if it has an attempt, or None if there is no such rollout."""
        raise NotImplementedError

    async def query_attempts(
        self,
        rollout_id: str,
        *,
        sort_by: str | None = "sequence_id",
        sort_order: Literal["asc", "desc"] = "asc",
        limit: int = -1,
        offset: int = 0,
    ) -> PaginatedResult[Attempt]:
        """Return one page of the attempts of a rollout, oldest first."""
        raise NotImplementedError

    async def get_latest_attempt(self, rollout_id: str) -> Attempt | None:
        """Return the attempt that drives the rollout, or None if there is none."""
        raise NotImplementedError

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
        filter_logic: Literal["and", "or"] = "and",
        sort_by: str | None = "sequence_id",
        sort_order: Literal["asc", "desc"] = "asc",
        limit: int = -1,
        offset: int = 0,
    ) -> PaginatedResult[Span]:
        """Return one page of the spans of a rollout, in their order: of one attempt, of the latest, or of all (None).

        `filter_logic` joins the keyword filters; the rollout and the attempt always apply.

        Raises:
            ValueError: `sort_by` names no field of a span.
        """
        raise NotImplementedError

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
        """Change fields of a rollout. Status `queuing` or `requeuing` puts it at the end of the queue.

        The status of a rollout that has ended stays as it is.

        Raises:
            ValueError: no such rollout.
        """
        raise NotImplementedError

    async def update_attempt(
        self,
        rollout_id: str,
        attempt_id: str | Literal["latest"],
        status: AttemptStatus | Unset = UNSET,
        worker_id: str | Unset = UNSET,
        last_heartbeat_time: float | Unset = UNSET,
        metadata: dict[str, Any] | Unset | None = UNSET,
    ) -> Attempt:
        """Change fields of an attempt. A new status of the latest attempt moves its rollout as well.

        The status of an attempt that succeeded, failed or timed out does not change; the returned attempt has it. Any
        `last_heartbeat_time` is a heartbeat; the recorded time is that of the call, by the store's clock.

        Raises:
            ValueError: no such rollout or attempt.
        """
        raise NotImplementedError

    async def delete_rollouts(self, rollout_ids: Sequence[str]) -> Sequence[str]:
        """Delete rollouts with all their attempts and spans, and return the ids of the deleted rollouts.

        A runner of one of them gets a ValueError at its next call. A rollout with many spans is deleted in parts,
        between which others write.
        """
        raise NotImplementedError

    async def wait_for_rollouts(self, *, rollout_ids: list[str], timeout: float | None = None) -> list[Rollout]:
        """Wait until all these rollouts have ended, at most `timeout` seconds (None: no limit; 0: do not wait).

        Return the rollouts that have ended, in the order given.

        Raises:
            ValueError: no such rollout.
        """
        raise NotImplementedError

    async def add_resources(self, resources: NamedResources) -> ResourcesUpdate:
        """Store a new set of resources under a new id, as version 1. It becomes the latest."""
        raise NotImplementedError

    async def update_resources(self, resources_id: str, resources: NamedResources) -> ResourcesUpdate:
        """Store the next version of the set of resources of this id, or its first one. It becomes the latest."""
        raise NotImplementedError

    async def query_resources(
        self,
        *,
        resources_id: str | None = None,
        resources_id_contains: str | None = None,
        sort_by: str | None = None,
        sort_order: Literal["asc", "desc"] = "asc",
        limit: int = -1,
        offset: int = 0,
    ) -> PaginatedResult[ResourcesUpdate]:
        """Return one page of the sets of resources that pass the filters, in the order of creation."""
        raise NotImplementedError

    async def get_resources_by_id(self, resources_id: str) -> ResourcesUpdate | None:
        """Return the set of resources of this id, or None."""
        raise NotImplementedError

    async def get_latest_resources(self) -> ResourcesUpdate | None:
        """Return the set of resources that was added or updated last, or None."""
        raise NotImplementedError

    async def update_worker(self, worker_id: str, heartbeat_stats: dict[str, Any] | Unset = UNSET) -> Worker:
        """Record a heartbeat of a worker, with its own statistics. An unknown worker is added."""
        raise NotImplementedError

    async def update_many_workers(self, heartbeats: dict[str, dict[str, Any]]) -> None:
        """Record heartbeats: the statistics of workers by their ids. Unknown workers are added.

        Raises:
            ValueError: there are more than `WORKERS_AT_ONCE`.
        """
        check_heartbeats(heartbeats)
        for worker_id, stats in heartbeats.items():
            await self.update_worker(worker_id, heartbeat_stats=stats)

    async def query_workers(
        self,
        *,
        status_in: Sequence[WorkerStatus] | None = None,
        worker_id_contains: str | None = None,
        filter_logic: Literal["and", "or"] = "and",
        sort_by: str | None = None,
        sort_order: Literal["asc", "desc"] = "asc",
        limit: int = -1,
        offset: int = 0,
    ) -> PaginatedResult[Worker]:
        """Return one page of the workers that pass the filters, in the order in which they were first seen."""
        raise NotImplementedError

    async def get_worker_by_id(self, worker_id: str) -> Worker | None:
        """Return the worker of this id, or None."""
        raise NotImplementedError

    async def close(self) -> None:
        """Close the store. Closing twice is harmless; any other call after it is an error."""


STORE_METHODS: Final = tuple(
    name for name, member in vars(LightningStore).items() if inspect.iscoroutinefunction(member)
)
"""Names of the async methods of the contract."""
