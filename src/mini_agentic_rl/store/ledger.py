"""The operations of the store contract on the tables of any backend. Synchronous; each runs inside one transaction.

`lifecycle` has the rules and `Tables` the data. The ledger reads rows, applies the rules, writes rows, and records in
`changes` the events for which callers wait.

Writes can be idempotent: `carried_out_once` gives a call a key, and the store keeps the ids of the objects that the
call made under that key, in the same transaction. It keeps no copies of the objects, so deleted content stays deleted.
A repeated call returns the objects in their current state.
"""

from __future__ import annotations

import json
import logging
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from ..types import (
    Attempt,
    AttemptedRollout,
    AttemptStatus,
    EnqueueRolloutRequest,
    NamedResources,
    ResourcesUpdate,
    Rollout,
    Span,
    Worker,
)
from . import lifecycle
from .base import UNSET, Unset
from .lifecycle import Now, construct
from .tables import DamagedRowError, Query, Tables, conditions

T = TypeVar("T")

logger = logging.getLogger(__name__)

_FAR: Final = 1e18
"""A time after all others."""
_GREATEST: Final = 2**53
"""Bound of all counts: every reader of JSON keeps such numbers exactly, and every database has room for them."""


@dataclass
class Changes:
    """Events of a transaction for which callers may wait."""

    queued: bool = False
    """True if the queue got longer."""
    ended: list[str] = field(default_factory=list)
    """Ids of the rollouts that ended."""
    deadline: float | None = None
    """Seconds since the epoch: the first limit of an attempt that was started or revived."""

    def __bool__(self) -> bool:
        return self.queued or bool(self.ended) or self.deadline is not None


class Ledger:
    """Operations of the store contract on the tables of one backend."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self.changes = Changes()

    def enqueue(self, requests: Sequence[EnqueueRolloutRequest]) -> list[Rollout]:
        """Queue new rollouts."""
        rollouts = self._new_rollouts(requests)
        self.tables.insert_rollouts(rollouts)
        self.changes.queued |= bool(rollouts)
        return rollouts

    def start_rollout(
        self, request: EnqueueRolloutRequest, worker_id: str | None, rollout_id: str | None
    ) -> AttemptedRollout:
        """Create a rollout with its first attempt, under an id of the caller's or a new one."""
        queued = self._new_rollouts([request])[0]
        if rollout_id is not None:
            if not rollout_id:
                raise ValueError("rollout_id='': expected an id")
            if self.tables.rollout(rollout_id) is not None:
                raise ValueError(f"there is a rollout {rollout_id} already")
            queued = queued.model_copy(update={"rollout_id": rollout_id})
        rollout, attempt = lifecycle.next_attempt(queued, None, _new_id("at"), worker_id, queued.start_time)
        self.tables.insert_rollouts([rollout])
        return self._started(rollout, attempt, dequeued=False)

    def dequeue(self, limit: int, worker_id: str | None) -> list[AttemptedRollout]:
        """Claim rollouts from the head of the queue."""
        if limit < 0:
            raise ValueError(f"limit={limit}: expected a count")
        limit = min(limit, _GREATEST)
        return [
            self._start_attempt(rollout, latest, worker_id, dequeued=True)
            for rollout, latest in self.tables.queued(limit)
        ]

    def start_attempt(self, rollout_id: str, worker_id: str | None) -> AttemptedRollout:
        """Start one more attempt of a rollout."""
        rollout, latest = self._rollout(rollout_id)
        return self._start_attempt(rollout, latest, worker_id, dequeued=False)

    def update_rollout(self, rollout_id: str, **fields: Any) -> Rollout:
        """Change fields of a rollout; UNSET leaves one as it is."""
        old, latest = self._rollout(rollout_id)
        status = fields.pop("status")
        update = {name: value for name, value in fields.items() if value is not UNSET}
        if update.get("metadata", UNSET) is None:
            update["metadata"] = {}
        new = Rollout(**{**vars(old), **update}) if update else old
        if status is not UNSET:
            new = lifecycle.rollout_with_status(new, status, time.time())
        self._replace_rollout(old, new)
        if latest is not None and "config" in update:
            for attempt in self.tables.select(Query("attempt", conditions({"rollout_id": rollout_id}))).items:
                if attempt.status in lifecycle.LIVE_ATTEMPT_STATUSES:
                    self.tables.replace_attempt(attempt, self._new_deadline(attempt, new))
        return lifecycle.with_attempt(new, latest)

    def delete_rollouts(self, rollout_ids: Sequence[str]) -> list[str]:
        """Remove rollouts with all that belongs to them; workers that ran one are at nothing then."""
        deleted = []
        for rollout_id in dict.fromkeys(rollout_ids):
            try:
                found = self.tables.rollout(rollout_id)
            except DamagedRowError:  # nobody can read who ran it
                attempt = None
            else:
                if found is None:
                    continue
                attempt = found[1]
            if attempt is not None and attempt.worker_id is not None:
                worker = self._worker(attempt.worker_id)
                self._write_worker(worker, lifecycle.worker_without_attempt(worker, attempt, time.time()))
            self.tables.delete_rollout(rollout_id)
            deleted.append(rollout_id)
        return deleted

    def update_attempt(self, rollout_id: str, attempt_id: str, status: AttemptStatus | Unset, **fields: Any) -> Attempt:
        """Change fields of an attempt; UNSET leaves one as it is. The worker and the rollout follow."""
        now = time.time()
        rollout, latest, old = self._attempt(rollout_id, attempt_id, or_latest=True)
        update = {name: value for name, value in fields.items() if value is not UNSET}
        if update.get("metadata", UNSET) is None:
            update["metadata"] = {}
        new = Attempt(**{**vars(old), **update}) if update else old
        if "last_heartbeat_time" in update:  # the caller's clock may be hours off
            new = lifecycle.replace_fields(new, last_heartbeat_time=now)
        if status is not UNSET:
            new = lifecycle.attempt_with_status(new, status, now)
        self._replace_attempt(rollout, latest, old, new, now)
        if new.worker_id is not None:
            if status in lifecycle.ENDED_ATTEMPT_STATUSES:
                worker = self._worker(new.worker_id)
                self._write_worker(worker, lifecycle.worker_without_attempt(worker, new, now))
            elif new.status in lifecycle.LIVE_ATTEMPT_STATUSES and (status is not UNSET or "worker_id" in update):
                worker = self._worker(new.worker_id)
                self._write_worker(worker, lifecycle.worker_with_attempt(worker, new, now))
        return new

    def add_spans(self, spans: Sequence[Span]) -> list[Span]:
        """Store spans, each a heartbeat of its attempt, and return those that were new, in the order given.

        A span with sequence id 0 is stored with the next one of its attempt.
        """
        now = time.time()
        for span in spans:  # the next number given out goes on from the greatest, and has to be a number as well
            if abs(span.sequence_id) >= _GREATEST:
                given = f"span {span.span_id}: sequence_id {span.sequence_id}"
                raise ValueError(f"{given} is out of range: those after it need 64 bits")
        by_attempt: dict[tuple[str, str], list[Span]] = {}
        for span in spans:
            by_attempt.setdefault((span.rollout_id, span.attempt_id), []).append(span)
        found = [(self._attempt(*ids), of_attempt) for ids, of_attempt in by_attempt.items()]
        stored: list[Span] = []
        for (rollout, latest, attempt), of_attempt in found:
            unnumbered = [index for index, span in enumerate(of_attempt) if span.sequence_id == 0]
            if unnumbered:
                ids = (attempt.rollout_id, attempt.attempt_id)
                number = self.tables.take_span_numbers(*ids, len(unnumbered)) or 0
                for sequence_id, index in enumerate(unnumbered, number):
                    of_attempt[index] = of_attempt[index].model_copy(update={"sequence_id": sequence_id})
            new = self.tables.insert_spans(attempt.rollout_id, attempt.attempt_id, of_attempt)
            if new:
                stored.extend(new)
                alive = lifecycle.attempt_after_span(attempt, now)
                self._replace_attempt(rollout, latest, attempt, alive, now)
                if attempt.status == "unresponsive" and alive.worker_id is not None:
                    worker = self._worker(alive.worker_id)
                    if worker.current_attempt_id == alive.attempt_id:
                        self._write_worker(worker, lifecycle.worker_with_attempt(worker, alive, now))
        if len(by_attempt) > 1:
            position = {(span.attempt_id, span.span_id): index for index, span in reversed(list(enumerate(spans)))}
            stored.sort(key=lambda span: position[span.attempt_id, span.span_id])
        return stored

    def span_numbers(self, rollout_attempt_ids: Sequence[tuple[str, str]]) -> list[int]:
        """Take one fresh sequence id for each pair."""
        numbers = []
        for rollout_id, wanted in rollout_attempt_ids:
            attempt_id = wanted
            if wanted == "latest":
                attempt_id = self._attempt(rollout_id, wanted, or_latest=True)[2].attempt_id
            number = self.tables.take_span_numbers(rollout_id, attempt_id, 1)
            if number is None:
                raise _unknown_attempt(rollout_id, attempt_id)
            numbers.append(number)
        return numbers

    def write_resources(self, resources: NamedResources, resources_id: str | None = None) -> ResourcesUpdate:
        """Store a new version of a set of resources, or a new set."""
        now = time.time()
        old = None if resources_id is None else self.tables.resources(resources_id)
        update = ResourcesUpdate(
            resources_id=resources_id or _new_id("rs"),
            create_time=now if old is None else old.create_time,
            update_time=now,
            version=1 if old is None else old.version + 1,
            resources=resources,
        )
        self.tables.write_resources(update)
        return update

    def update_worker(self, worker_id: str, heartbeat_stats: dict[str, Any] | Unset) -> Worker:
        """Record a heartbeat of a worker."""
        update: dict[str, Any] = {"last_heartbeat_time": time.time()}
        if heartbeat_stats is not UNSET:
            update["heartbeat_stats"] = heartbeat_stats
        worker = self._worker(worker_id).model_copy(update=update)
        self.tables.write_worker(worker)
        return worker

    def ended(self, rollout_ids: Sequence[str]) -> list[Rollout]:
        """Return those of the rollouts that have ended, in the order given."""
        ended, unknown = self.tables.ended(rollout_ids)
        if unknown:
            raise ValueError(f"no rollout {unknown[0]}")
        return list(ended)

    def check_health(self, now: Now) -> None:
        """Mark every attempt that has passed a limit, and move its rollout.

        One whose limit was passed by a jump of the clock alone, or while no store was open, gets a new deadline.
        """
        for rollout_id, attempt_id in self.tables.overdue(_FAR if now.went_back else now.time):
            try:
                rollout, latest, attempt = self._attempt(rollout_id, attempt_id)
            except DamagedRowError as error:  # its row is damaged, and no reason to stop the others
                logger.error("%s; its limits are not checked", error)
                continue
            status = lifecycle.overdue_status(attempt, rollout.config, now.time, now)
            if status is None:
                self.tables.replace_attempt(attempt, self._new_deadline(attempt, rollout, now))
                continue
            lost = lifecycle.attempt_with_status(attempt, status, now.time)
            self._replace_attempt(rollout, latest, attempt, lost, now.time)
            if lost.worker_id is not None:
                worker = self._worker(lost.worker_id)
                self._write_worker(worker, lifecycle.worker_out_of_sight(worker, lost))

    def _new_rollouts(self, requests: Sequence[EnqueueRolloutRequest]) -> list[Rollout]:
        now = time.time()
        latest = self.tables.latest_resources()
        resources_id = None if latest is None else latest.resources_id
        return [lifecycle.new_rollout(request, _new_id("ro"), resources_id, now) for request in requests]

    def _start_attempt(
        self, rollout: Rollout, latest: Attempt | None, worker_id: str | None, *, dequeued: bool
    ) -> AttemptedRollout:
        prepared, attempt = lifecycle.next_attempt(rollout, latest, _new_id("at"), worker_id, time.time())
        self._replace_rollout(rollout, prepared)
        return self._started(prepared, attempt, dequeued=dequeued)

    def _started(self, rollout: Rollout, attempt: Attempt, *, dequeued: bool) -> AttemptedRollout:
        self.tables.insert_attempt(attempt, self._new_deadline(attempt, rollout))
        if attempt.worker_id is not None:
            worker = self._worker(attempt.worker_id)
            busy = lifecycle.worker_with_attempt(worker, attempt, attempt.start_time, dequeued=dequeued)
            self.tables.write_worker(busy)
        return construct(AttemptedRollout, {**vars(rollout), "attempt": attempt})

    def _rollout(self, rollout_id: str) -> tuple[Rollout, Attempt | None]:
        found = self.tables.rollout(rollout_id)
        if found is None:
            raise ValueError(f"no rollout {rollout_id}")
        return found

    def _attempt(
        self, rollout_id: str, attempt_id: str, *, or_latest: bool = False
    ) -> tuple[Rollout, Attempt, Attempt]:
        """Return the rollout, its latest attempt, and the attempt asked for ("latest" counts with `or_latest`)."""
        rollout, latest = self._rollout(rollout_id)
        if latest is not None and (attempt_id == latest.attempt_id or (or_latest and attempt_id == "latest")):
            return rollout, latest, latest
        attempt = self.tables.attempt(rollout_id, attempt_id)
        if latest is None or attempt is None:
            raise _unknown_attempt(rollout_id, attempt_id)
        return rollout, latest, attempt

    def _worker(self, worker_id: str) -> Worker:
        return self.tables.worker(worker_id) or Worker(worker_id=worker_id)

    def _write_worker(self, old: Worker, new: Worker) -> None:
        if new is not old:
            self.tables.write_worker(new)

    def _replace_rollout(self, old: Rollout, new: Rollout) -> None:
        if new is old:
            return
        self.tables.replace_rollout(old, new)
        if new.status != old.status:
            self.changes.queued |= new.status in lifecycle.QUEUED_STATUSES
            if lifecycle.has_ended(new):
                self.changes.ended.append(new.rollout_id)

    def _replace_attempt(self, rollout: Rollout, latest: Attempt, old: Attempt, new: Attempt, now: float) -> None:
        if new is old:
            return
        if old.status in lifecycle.LIVE_ATTEMPT_STATUSES:
            self.tables.replace_attempt(new, lifecycle.deadline(new, rollout.config))
        else:
            self.tables.replace_attempt(new, self._new_deadline(new, rollout))
        if new.status != old.status and new.attempt_id == latest.attempt_id:
            self._replace_rollout(rollout, lifecycle.rollout_following(rollout, new, now))

    def _new_deadline(self, attempt: Attempt, rollout: Rollout, now: Now | None = None) -> float | None:
        deadline = lifecycle.deadline(attempt, rollout.config, now)
        if deadline is not None:
            known = self.changes.deadline
            self.changes.deadline = deadline if known is None else min(known, deadline)
        return deadline


def _new_id(prefix: str) -> str:
    """Make a new id.

    Ids grow with time, which keeps a database's indexes compact; 48 random bits tell those of one instant apart.
    """
    return f"{prefix}-{time.time_ns() >> 16:012x}{secrets.token_hex(6)}"


def _unknown_attempt(rollout_id: str, attempt_id: str) -> ValueError:
    return ValueError(f"no attempt {attempt_id} of rollout {rollout_id}")


_key: ContextVar[str | None] = ContextVar("key_of_write", default=None)

_IDS: Final[dict[type[Any], tuple[str, ...]]] = {
    Rollout: ("rollout_id",),
    Attempt: ("rollout_id", "attempt_id"),
    Span: ("rollout_id", "attempt_id", "span_id"),
    ResourcesUpdate: ("resources_id",),
    Worker: ("worker_id",),
}


@contextmanager
def carried_out_once(key: str) -> Iterator[None]:
    """Carry out the writes of one call in this context, unless they were carried out under this key before."""
    token = _key.set(key)
    try:
        yield
    finally:
        _key.reset(token)


def once(operation: Callable[[Ledger], T], part: int) -> Callable[[Ledger], T]:
    """Return an operation that looks up its earlier result if the key of this context has been used.

    Args:
        operation: One transaction.
        part: Number of the transaction within the call.
    """
    key = _key.get()
    if key is None:
        return operation
    key_of_part = f"{part} {key}"

    def run(ledger: Ledger) -> Any:
        known = ledger.tables.outcome(key_of_part)
        if known is not None:
            return _recalled(ledger.tables, json.loads(known))
        result = operation(ledger)
        ledger.tables.keep_outcome(key_of_part, json.dumps(_named(result), separators=(",", ":")))
        return result

    return run


def _named(result: Any) -> Any:
    """Return the ids of a result, as JSON values."""
    if isinstance(result, list):
        return [_named(item) for item in result]
    if isinstance(result, AttemptedRollout):
        return {"AttemptedRollout": [result.rollout_id, result.attempt.attempt_id]}
    for kind, ids in _IDS.items():
        if isinstance(result, kind):
            return {kind.__name__: [getattr(result, name) for name in ids]}
    return result


def _recalled(tables: Tables, named: Any) -> Any:
    """Return the result that has these ids. A list is returned without the items that were deleted since.

    Raises:
        ValueError: the result was one object, which was deleted since.
    """
    if isinstance(named, list):
        items = [_stored(tables, *item.popitem()) if isinstance(item, dict) else item for item in named]
        return [item for item in items if item is not None]
    if not isinstance(named, dict):
        return named
    ((kind, ids),) = named.items()
    item = _stored(tables, kind, ids)
    if item is None:
        raise ValueError(f"no {kind} {' '.join(ids)}: it was deleted after this request had been carried out")
    return item


def _stored(tables: Tables, kind: str, ids: list[str]) -> Any:
    """Return the stored object of some ids, or None."""
    if kind == "ResourcesUpdate":
        return tables.resources(*ids)
    if kind == "Worker":
        return tables.worker(*ids)
    if kind == "Attempt":
        return tables.attempt(*ids)
    if kind == "Span":
        spans = tables.select(Query("span", conditions(dict(zip(_IDS[Span], ids, strict=True))))).items
        return spans[0] if spans else None
    rollout = tables.rollout(ids[0])
    if rollout is None or kind == "Rollout":
        return rollout and rollout[0]
    return lifecycle.with_attempt(rollout[0], tables.attempt(*ids))
