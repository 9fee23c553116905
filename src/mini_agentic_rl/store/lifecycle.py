"""The state machines of rollouts, attempts and workers, as pure functions; and the store's clock.

An attempt: preparing → running → succeeded | failed | timeout. It becomes unresponsive in between; a span revives it.
A rollout follows its latest attempt. After failed, timeout or unresponsive it is queued again while `retry_condition`
and `max_attempts` allow, else it has failed. A queued rollout waits for a new attempt, so a bad end of the latest
attempt does not move it. A final status never changes. Times are seconds since the epoch.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from pydantic import BaseModel

from ..types import (
    TERMINAL_ROLLOUT_STATUSES,
    Attempt,
    AttemptedRollout,
    AttemptStatus,
    EnqueueRolloutRequest,
    Rollout,
    RolloutConfig,
    RolloutStatus,
    Worker,
)

QUEUED_STATUSES: Final[frozenset[RolloutStatus]] = frozenset({"queuing", "requeuing"})
ENDED_ATTEMPT_STATUSES: Final[frozenset[AttemptStatus]] = frozenset({"succeeded", "failed", "timeout"})
LIVE_ATTEMPT_STATUSES: Final[frozenset[AttemptStatus]] = frozenset({"preparing", "running"})
_SKEW_SECONDS: Final = 1.0
"""Seconds by which a recorded time may be ahead of the clock."""


def new_rollout(request: EnqueueRolloutRequest, rollout_id: str, resources_id: str | None, now: float) -> Rollout:
    """Create a queued rollout; `resources_id` is used where the request names none."""
    return Rollout(
        rollout_id=rollout_id,
        input=request.input,
        start_time=now,
        mode=request.mode,
        resources_id=request.resources_id if request.resources_id is not None else resources_id,
        config=request.config or RolloutConfig(),
        metadata=dict(request.metadata or {}),
    )


def next_attempt(
    rollout: Rollout, latest: Attempt | None, attempt_id: str, worker_id: str | None, now: float
) -> tuple[Rollout, Attempt]:
    """Return the rollout in preparation, and the attempt that drives it from now on.

    Raises:
        ValueError: the rollout has ended.
    """
    if has_ended(rollout):
        raise ValueError(f"rollout {rollout.rollout_id} has ended ({rollout.status}); enqueue its task again instead")
    attempt = Attempt(
        rollout_id=rollout.rollout_id,
        attempt_id=attempt_id,
        sequence_id=1 if latest is None else latest.sequence_id + 1,
        start_time=now,
        worker_id=worker_id,
    )
    return rollout_with_status(rollout, "preparing", now), attempt


def has_ended(rollout: Rollout) -> bool:
    """Return True if the rollout's status is final."""
    return rollout.status in TERMINAL_ROLLOUT_STATUSES


def with_attempt(rollout: Rollout, attempt: Attempt | None) -> Rollout:
    """Return the rollout as callers see it: an `AttemptedRollout` once it has an attempt."""
    if attempt is None:
        return rollout
    return construct(AttemptedRollout, {**vars(rollout), "attempt": attempt})


def rollout_with_status(rollout: Rollout, status: RolloutStatus, now: float) -> Rollout:
    """Return the rollout with another status; unchanged if it has ended."""
    if status == rollout.status or has_ended(rollout):
        return rollout
    update: dict[str, Any] = {"status": status}
    if status in TERMINAL_ROLLOUT_STATUSES:
        update["end_time"] = now
    return replace_fields(rollout, **update)


def rollout_following(rollout: Rollout, attempt: Attempt, now: float) -> Rollout:
    """Return the rollout with the status to which its latest attempt moves it."""
    status = attempt.status
    if status == "preparing" or status == "running" or status == "succeeded":
        return rollout_with_status(rollout, status, now)
    if rollout.status in QUEUED_STATUSES:
        return rollout
    retry = status in rollout.config.retry_condition and attempt.sequence_id < rollout.config.max_attempts
    return rollout_with_status(rollout, "requeuing" if retry else "failed", now)


def attempt_with_status(attempt: Attempt, status: AttemptStatus, now: float) -> Attempt:
    """Return the attempt with another status; unchanged if it has ended."""
    if status == attempt.status or attempt.status in ENDED_ATTEMPT_STATUSES:
        return attempt
    update: dict[str, Any] = {"status": status}
    if status in ENDED_ATTEMPT_STATUSES:
        update["end_time"] = now
    return replace_fields(attempt, **update)


def attempt_after_span(attempt: Attempt, now: float) -> Attempt:
    """Return the attempt after one of its spans has come in: with a heartbeat now, and running unless it has ended."""
    if attempt.status in ENDED_ATTEMPT_STATUSES:
        return attempt
    return replace_fields(attempt, status="running", last_heartbeat_time=now)


def overdue_status(attempt: Attempt, config: RolloutConfig, now: Now) -> AttemptStatus | None:
    """Return `timeout` or `unresponsive` if the attempt has passed its limit, else None."""
    if attempt.status not in LIVE_ATTEMPT_STATUSES:
        return None
    limit, silence = config.timeout_seconds, config.unresponsive_seconds
    if limit is not None and now.time >= _counted(attempt.start_time, now) + limit:
        return "timeout"
    if silence is not None and now.time >= _counted(_last_heartbeat(attempt), now) + silence:
        return "unresponsive"
    return None


def deadline(attempt: Attempt, config: RolloutConfig, now: Now | None = None) -> float | None:
    """Return when the attempt passes its first limit without further spans or heartbeats, or None if it never does.

    Args:
        now: A reading of the clock; None takes recorded times as they are.
    """
    if attempt.status not in LIVE_ATTEMPT_STATUSES:
        return None
    timeout = None if config.timeout_seconds is None else _counted(attempt.start_time, now) + config.timeout_seconds
    if config.unresponsive_seconds is None:
        return timeout
    silence = _counted(_last_heartbeat(attempt), now) + config.unresponsive_seconds
    return silence if timeout is None else min(timeout, silence)


def _counted(recorded: float, now: Now | None) -> float:
    """Return the begin of an interval that was recorded: after a jump of the clock, at the earliest that jump."""
    if now is None or now.since <= recorded <= now.time + _SKEW_SECONDS:
        return recorded
    return now.since


def _last_heartbeat(attempt: Attempt) -> float:
    return attempt.start_time if attempt.last_heartbeat_time is None else attempt.last_heartbeat_time


def worker_with_attempt(worker: Worker, attempt: Attempt, now: float, *, dequeued: bool = False) -> Worker:
    """Return the worker, busy with an attempt."""
    update: dict[str, Any] = {
        "status": "busy",
        "last_busy_time": now,
        "current_rollout_id": attempt.rollout_id,
        "current_attempt_id": attempt.attempt_id,
    }
    if dequeued:
        update["last_dequeue_time"] = now
    return replace_fields(worker, **update)


def _works_on(worker: Worker, attempt: Attempt) -> bool:
    return worker.current_attempt_id == attempt.attempt_id and worker.current_rollout_id == attempt.rollout_id


def worker_without_attempt(worker: Worker, attempt: Attempt, now: float) -> Worker:
    """Return the worker as idle; unchanged if it works on another attempt."""
    if not _works_on(worker, attempt):
        return worker
    return replace_fields(worker, status="idle", last_idle_time=now, current_rollout_id=None, current_attempt_id=None)


def worker_out_of_sight(worker: Worker, attempt: Attempt) -> Worker:
    """Return the worker of an attempt that passed a limit, in status `unknown`; unchanged if it works on another."""
    return replace_fields(worker, status="unknown") if _works_on(worker, attempt) else worker


def worker_in_sight_again(worker: Worker, attempt: Attempt, now: float) -> Worker:
    """Return the worker of an attempt that was revived as busy; unchanged if it works on another."""
    return worker_with_attempt(worker, attempt, now) if _works_on(worker, attempt) else worker


M = TypeVar("M", bound=BaseModel)


def construct(model: type[M], values: dict[str, Any]) -> M:
    """Make an object of `model` from valid values, one for each of its fields, without a copy of the dict.

    A fast `model.model_construct(**values)` for models without private attributes and extra fields. Stores use it for
    rows and for changed objects; values of a caller are validated by the model.
    """
    item = model.__new__(model)
    object.__setattr__(item, "__dict__", values)
    object.__setattr__(item, "__pydantic_fields_set__", set(values))
    object.__setattr__(item, "__pydantic_extra__", None)
    object.__setattr__(item, "__pydantic_private__", None)
    return item


def replace_fields(item: M, **update: Any) -> M:
    """Return the object with other values in some fields: a fast `item.model_copy(update=update)`."""
    return construct(type(item), {**vars(item), **update})


_JUMP_SECONDS: Final = 1.0
_DRIFT: Final = 0.001
"""Share of the time between two readings by which a clock that is slewed may drift."""


def steady() -> float:
    """Return seconds of a clock that nobody sets."""
    return time.monotonic()


@dataclass(frozen=True)
class Now:
    """A reading of the clock."""

    time: float
    """Seconds since the epoch."""
    since: float
    """The time of the last jump of the clock, or of the start of the store."""
    went_back: bool = False
    """True if it has been set back since the last scan."""


class StoreClock:
    """Read the time of day and detect its jumps. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._time, self._steady = time.time(), steady()
        self._since = self._steady
        self._jumped = self._went_back = False

    def jumped(self) -> bool:
        """Return True if the clock has jumped since the last `look_for_scan`."""
        with self._lock:
            self._look()
            return self._jumped

    def look_for_scan(self) -> Now:
        """Return the time, for a scan of all attempts."""
        with self._lock:
            self._look()
            now = Now(self._time, self._time - (self._steady - self._since), self._went_back)
            self._jumped = self._went_back = False
            return now

    def _look(self) -> None:
        now, even = time.time(), steady()
        passed = even - self._steady
        jump = now - self._time - passed
        if abs(jump) > _JUMP_SECONDS + _DRIFT * passed:
            self._since = even
            self._jumped = True
            self._went_back |= jump < 0
        self._time, self._steady = now, even
