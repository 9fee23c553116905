"""A plain model of a store, written from the contract: lists and dictionaries, no index, nothing remembered.

It makes no ids: it is told those that a store gave out. Times are those of the calls. What the contract leaves open, it
leaves open: rollouts that are queued again by one health check share one position in the queue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from mini_agentic_rl.types import EnqueueRolloutRequest, RolloutConfig, Span

ENDED_ROLLOUT = ("succeeded", "failed", "cancelled")
ENDED_ATTEMPT = ("succeeded", "failed", "timeout")
WAITING = ("queuing", "requeuing")


@dataclass
class ModelAttempt:
    rollout_id: str
    attempt_id: str
    sequence_id: int
    start_time: float
    worker_id: str | None
    status: str = "preparing"
    end_time: float | None = None
    last_heartbeat_time: float | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    last_number: int = 0


@dataclass
class ModelRollout:
    rollout_id: str
    input: Any
    start_time: float
    mode: str | None
    resources_id: str | None
    config: RolloutConfig
    metadata: dict[str, Any]
    status: str = "queuing"
    end_time: float | None = None
    attempts: list[ModelAttempt] = field(default_factory=list)
    queue_position: int = 0

    @property
    def latest(self) -> ModelAttempt | None:
        return self.attempts[-1] if self.attempts else None


@dataclass
class ModelWorker:
    worker_id: str
    status: str = "unknown"
    heartbeat_stats: dict[str, Any] | None = None
    last_heartbeat_time: float | None = None
    current_rollout_id: str | None = None
    current_attempt_id: str | None = None


@dataclass
class ModelResources:
    resources_id: str
    create_time: float
    update_time: float
    version: int
    resources: dict[str, Any]


class ModelStore:
    def __init__(self) -> None:
        self.now = 0.0
        self.opened = 0.0
        """When the store was opened last: no interval counts from before."""
        self.rollouts: dict[str, ModelRollout] = {}
        self.spans: list[Span] = []
        self.workers: dict[str, ModelWorker] = {}
        self.resources: dict[str, ModelResources] = {}
        self.latest_resources: ModelResources | None = None
        self._queue_end = 0

    def at(self, now: float) -> None:
        """The time of the next call; attempts that have gone past a limit by then are marked."""
        self.now = now
        self._queue_end += 1
        for rollout in self.rollouts.values():
            for attempt in rollout.attempts:
                status = self._verdict(rollout.config, attempt)
                if status is not None:
                    self._move_attempt(rollout, attempt, status)
                    worker = self._working_on(attempt)
                    if worker is not None:
                        worker.status = "unknown"
        self._queue_end += 1

    def _verdict(self, config: RolloutConfig, attempt: ModelAttempt) -> str | None:
        if attempt.status not in ("preparing", "running"):
            return None
        if (
            config.timeout_seconds is not None
            and self.now - self._counted(attempt.start_time) >= config.timeout_seconds
        ):
            return "timeout"
        heard = attempt.start_time if attempt.last_heartbeat_time is None else attempt.last_heartbeat_time
        if config.unresponsive_seconds is not None and self.now - self._counted(heard) >= config.unresponsive_seconds:
            return "unresponsive"
        return None

    def _counted(self, recorded: float) -> float:
        return max(recorded, self.opened)

    def create(self, rollout_id: str, request: EnqueueRolloutRequest) -> ModelRollout:
        self._queue_end += 1
        latest = None if self.latest_resources is None else self.latest_resources.resources_id
        rollout = self.rollouts[rollout_id] = ModelRollout(
            rollout_id=rollout_id,
            input=request.input,
            start_time=self.now,
            mode=request.mode,
            resources_id=request.resources_id if request.resources_id is not None else latest,
            config=request.config or RolloutConfig(),
            metadata=request.metadata or {},
            queue_position=self._queue_end,
        )
        return rollout

    def queue_places(self) -> list[int]:
        return sorted(rollout.queue_position for rollout in self.rollouts.values() if rollout.status in WAITING)

    def start_attempt(self, rollout_id: str, attempt_id: str, worker_id: str | None) -> ModelAttempt:
        rollout = self.rollouts[rollout_id]
        reached = max((earlier.last_number for earlier in rollout.attempts), default=0)
        attempt = ModelAttempt(
            rollout_id, attempt_id, len(rollout.attempts) + 1, self.now, worker_id, last_number=reached
        )
        rollout.attempts.append(attempt)
        self._move_rollout(rollout, "preparing")
        self._busy(attempt)
        return attempt

    def add_spans(self, spans: Sequence[Span]) -> list[Span]:
        """The new ones, in the order given. They are stored attempt by attempt, in the order of their first spans."""
        attempts = list(dict.fromkeys((span.rollout_id, span.attempt_id) for span in spans))
        new = []
        for span in sorted(spans, key=lambda span: attempts.index((span.rollout_id, span.attempt_id))):
            rollout, attempt = self.attempt(span.rollout_id, span.attempt_id)
            if any(self._key(span) == self._key(known) for known in self.spans):
                continue
            self.spans.append(span)
            new.append(self._key(span))
            attempt.last_number = max(attempt.last_number, span.sequence_id)
            if attempt.status not in ENDED_ATTEMPT:
                revived = attempt.status == "unresponsive"
                attempt.last_heartbeat_time = self.now
                self._move_attempt(rollout, attempt, "running")
                if revived and self._working_on(attempt) is not None:
                    self._busy(attempt)
        given = {self._key(span): span for span in reversed(spans)}
        return [given[key] for key in dict.fromkeys(map(self._key, spans)) if key in new]

    def next_number(self, rollout_id: str, attempt_id: str) -> int:
        _, attempt = self.attempt(rollout_id, attempt_id)
        attempt.last_number += 1
        return attempt.last_number

    def update_rollout(self, rollout_id: str, status: str | None, **fields: Any) -> None:
        rollout = self.rollouts[rollout_id]
        for name, value in fields.items():
            setattr(rollout, name, {} if name == "metadata" and value is None else value)
        if status is not None:
            self._queue_end += 1
            self._move_rollout(rollout, status)

    def update_attempt(self, rollout_id: str, attempt_id: str, status: str | None, **fields: Any) -> ModelAttempt:
        rollout, attempt = self.attempt(rollout_id, attempt_id)
        for name, value in fields.items():
            setattr(attempt, name, {} if name == "metadata" and value is None else value)
        if "last_heartbeat_time" in fields:
            attempt.last_heartbeat_time = self.now
        if status is not None:
            self._queue_end += 1
            self._move_attempt(rollout, attempt, status)
        if status in ENDED_ATTEMPT:
            worker = self._working_on(attempt)
            if worker is not None:
                worker.status, worker.current_rollout_id, worker.current_attempt_id = "idle", None, None
        elif attempt.status in ("preparing", "running") and (status is not None or "worker_id" in fields):
            self._busy(attempt)
        return attempt

    def write_resources(self, resources_id: str, resources: dict[str, Any]) -> ModelResources:
        old = self.resources.get(resources_id)
        if old is None:
            new = ModelResources(resources_id, self.now, self.now, 1, resources)
        else:
            new = ModelResources(resources_id, old.create_time, self.now, old.version + 1, resources)
        self.resources[resources_id] = self.latest_resources = new
        return new

    def heartbeat(self, worker_id: str, stats: dict[str, Any] | None) -> ModelWorker:
        worker = self.workers.setdefault(worker_id, ModelWorker(worker_id))
        worker.last_heartbeat_time = self.now
        if stats is not None:
            worker.heartbeat_stats = stats
        return worker

    def attempt(self, rollout_id: str, attempt_id: str) -> tuple[ModelRollout, ModelAttempt]:
        rollout = self.rollouts[rollout_id]
        return rollout, next(attempt for attempt in rollout.attempts if attempt.attempt_id == attempt_id)

    def attempts(self) -> list[ModelAttempt]:
        return [attempt for rollout in self.rollouts.values() for attempt in rollout.attempts]

    def _move_attempt(self, rollout: ModelRollout, attempt: ModelAttempt, status: str) -> None:
        if attempt.status in ENDED_ATTEMPT or status == attempt.status:
            return
        attempt.status = status
        if status in ENDED_ATTEMPT:
            attempt.end_time = self.now
        if attempt is not rollout.latest:
            return
        if status in ("failed", "timeout", "unresponsive"):
            if rollout.status in WAITING:
                return
            again = status in rollout.config.retry_condition and attempt.sequence_id < rollout.config.max_attempts
            self._move_rollout(rollout, "requeuing" if again else "failed")
        else:
            self._move_rollout(rollout, status)

    def _move_rollout(self, rollout: ModelRollout, status: str) -> None:
        if rollout.status in ENDED_ROLLOUT:
            return
        if status in WAITING and rollout.status not in WAITING:
            rollout.queue_position = self._queue_end
        rollout.status = status
        if status in ENDED_ROLLOUT:
            rollout.end_time = self.now

    def _busy(self, attempt: ModelAttempt) -> None:
        if attempt.worker_id is not None:
            worker = self.workers.setdefault(attempt.worker_id, ModelWorker(attempt.worker_id))
            worker.status = "busy"
            worker.current_rollout_id, worker.current_attempt_id = attempt.rollout_id, attempt.attempt_id

    def _working_on(self, attempt: ModelAttempt) -> ModelWorker | None:
        worker = None if attempt.worker_id is None else self.workers.get(attempt.worker_id)
        return worker if worker is not None and worker.current_attempt_id == attempt.attempt_id else None

    @staticmethod
    def _key(span: Span) -> tuple[str, str, str]:
        return span.rollout_id, span.attempt_id, span.span_id


def page_of(
    items: Iterable[Any],
    *,
    tests: list[Callable[[Any], bool]],
    filter_logic: str = "and",
    sort_by: str | None,
    sort_order: str,
    limit: int,
    offset: int,
) -> tuple[list[Any], int]:
    """The page of a query and the number of all that match. `tests` are the filters that were given."""
    join = all if filter_logic == "and" else any
    found = [item for item in items if not tests or join(test(item) for test in tests)]
    if sort_by is not None:
        holders = [item for item in found if getattr(item, sort_by) is not None]
        empty = [item for item in found if getattr(item, sort_by) is None]
        holders = sorted(holders, key=lambda item: getattr(item, sort_by), reverse=sort_order == "desc")
        ordered = [*holders, *empty] if sort_order == "desc" else [*empty, *holders]
    else:
        ordered = found[::-1] if sort_order == "desc" else found
    return ordered[offset:] if limit == -1 else ordered[offset : offset + limit], len(found)
