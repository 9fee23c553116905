"""The operations of the store contract on the tables of any backend. Synchronous; each runs inside one transaction.

Methods that have the name of a method of `LightningStore` also have its parameters and its meaning. `lifecycle` has the
rules and `Tables` the data: the ledger reads rows, applies the rules, writes rows, and records in `changes` the events
for which callers wait.

Writes can be idempotent: `carried_out_once` gives a call a key, under which the store keeps the ids of the objects
that the call made, in the same transaction. A repeated call returns these objects in their current state. No copies are
kept, so deleted content stays deleted.
"""

from __future__ import annotations

import inspect
import json
import logging
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
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
    RolloutConfig,
    RolloutMode,
    RolloutStatus,
    Span,
    TaskInput,
    Worker,
)
from . import lifecycle
from .base import UNSET, LightningStore, Unset
from .lifecycle import Now, construct
from .listing import GroupPage, RolloutFilter, RolloutPage, check_page
from .tables import IDS, MODELS, DamagedRowError, Kind, Query, Tables, conditions

T = TypeVar("T")

logger = logging.getLogger(__name__)

_END_OF_TIME: Final = 1e18
_LOST_AT_ONCE: Final = 64
"""Most attempts past a limit that one transaction marks: about 10 ms."""
_ALL: Final = 2**31 - 1
_GREATEST: Final = 2**53
"""Bound of all counts: JSON readers and databases represent smaller numbers exactly."""
SPANS_DELETED_AT_ONCE: Final = 1000
"""Most spans that one transaction deletes, but for those of the rollouts that it deletes whole."""
QUERIES: Final[dict[str, Kind]] = {
    "query_rollouts": "rollout",
    "query_attempts": "attempt",
    "query_spans": "span",
    "query_resources": "resources",
    "query_workers": "worker",
}
"""Query methods of the contract, and the kind of object that each returns pages of."""
_SIGNATURES: Final = {name: inspect.signature(getattr(LightningStore, name)) for name in QUERIES}


@dataclass
class Changes:
    """Events of a transaction that callers may wait for."""

    queued: bool = False
    """True if the queue got longer."""
    ended: list[str] = field(default_factory=list)
    """Ids of the rollouts that ended."""
    deadline: float | None = None
    """The first deadline of an attempt that was started or revived, in seconds since the epoch."""

    def __bool__(self) -> bool:
        return self.queued or bool(self.ended) or self.deadline is not None


class Ledger:
    """Operations of the store contract on the tables of one backend."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self.changes = Changes()

    def start_rollout(
        self,
        input: TaskInput,
        mode: RolloutMode | None = None,
        resources_id: str | None = None,
        config: RolloutConfig | None = None,
        metadata: dict[str, Any] | None = None,
        worker_id: str | None = None,
        rollout_id: str | None = None,
    ) -> AttemptedRollout:
        request = EnqueueRolloutRequest(
            input=input, mode=mode, resources_id=resources_id, config=config, metadata=metadata
        )
        (queued,) = self._new_rollouts([request])
        if rollout_id is not None:
            if not rollout_id:
                raise ValueError("rollout_id='': expected an id")
            if self.tables.rollout(rollout_id) is not None:
                raise ValueError(f"there is a rollout {rollout_id} already")
            queued = queued.model_copy(update={"rollout_id": rollout_id})
        rollout, attempt = lifecycle.next_attempt(queued, None, _new_id("at"), worker_id, queued.start_time)
        self.tables.insert_rollouts([rollout])
        return self._started(rollout, attempt, dequeued=False)

    def enqueue_many_rollouts(self, requests: Sequence[EnqueueRolloutRequest]) -> list[Rollout]:
        rollouts = self._new_rollouts(requests)
        self.tables.insert_rollouts(rollouts)
        self.changes.queued |= bool(rollouts)
        return rollouts

    def dequeue_many_rollouts(self, limit: int, worker_id: str | None) -> list[AttemptedRollout]:
        if limit < 0:
            raise ValueError(f"limit={limit}: expected a count")
        return [
            self._start_attempt(rollout, latest, worker_id, dequeued=True)
            for rollout, latest in self.tables.queued(min(limit, _GREATEST))
        ]

    def start_attempt(self, rollout_id: str, worker_id: str | None = None) -> AttemptedRollout:
        rollout, latest = self._rollout(rollout_id)
        return self._start_attempt(rollout, latest, worker_id, dequeued=False)

    def query(self, method: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Query:
        """Return the query of a call of one of the methods in `QUERIES`."""
        bound = _SIGNATURES[method].bind(None, *args, **kwargs)
        bound.apply_defaults()
        filters = bound.arguments
        del filters["self"]
        order = {name: filters.pop(name) for name in ("sort_by", "sort_order", "limit", "offset")}
        logic = filters.pop("filter_logic", "and")
        scope: dict[str, Any] = {}
        if method == "query_rollouts":
            for name, older_name in (("status_in", "status"), ("rollout_id_in", "rollout_ids")):
                older = filters.pop(older_name)
                filters[name] = older if filters[name] is None else filters[name]
        elif method in ("query_attempts", "query_spans"):
            scope = {name: filters.pop(name) for name in ("rollout_id", "attempt_id") if name in filters}
            if scope.get("attempt_id") == "latest":
                latest = self.get_latest_attempt(scope["rollout_id"])
                scope["attempt_id"] = "" if latest is None else latest.attempt_id
        return Query(QUERIES[method], conditions(scope), conditions(filters), logic, **order)

    def list_rollouts(self, *, before: int | None = None, limit: int = 100, **conditions: Any) -> RolloutPage:
        check_page(before, limit)
        return self.tables.list_rollouts(RolloutFilter(**conditions), before, limit)

    def list_groups(self, *, before: int | None = None, limit: int = 100) -> GroupPage:
        check_page(before, limit)
        return self.tables.list_groups(before, limit)

    def get_rollout_by_id(self, rollout_id: str) -> Rollout | None:
        row = self.tables.rollout(rollout_id)
        return None if row is None else lifecycle.with_attempt(*row)

    def get_latest_attempt(self, rollout_id: str) -> Attempt | None:
        row = self.tables.rollout(rollout_id)
        return None if row is None else row[1]

    def get_resources_by_id(self, resources_id: str) -> ResourcesUpdate | None:
        return self.tables.resources(resources_id)

    def get_latest_resources(self) -> ResourcesUpdate | None:
        return self.tables.latest_resources()

    def get_worker_by_id(self, worker_id: str) -> Worker | None:
        return self.tables.worker(worker_id)

    def update_rollout(
        self,
        rollout_id: str,
        input: TaskInput | Unset = UNSET,
        mode: RolloutMode | Unset | None = UNSET,
        resources_id: str | Unset | None = UNSET,
        status: RolloutStatus | Unset = UNSET,
        config: RolloutConfig | Unset = UNSET,
        metadata: dict[str, Any] | Unset | None = UNSET,
    ) -> Rollout:
        old, latest = self._rollout(rollout_id)
        fields = {
            "input": input,
            "mode": mode,
            "resources_id": resources_id,
            "config": config,
            "metadata": {} if metadata is None else metadata,
        }
        update = {name: value for name, value in fields.items() if value is not UNSET}
        new = Rollout(**{**vars(old), **update}) if update else old
        if status is not UNSET:
            new = lifecycle.rollout_with_status(new, status, time.time())
        self._replace_rollout(old, new)
        if latest is not None and "config" in update:
            for attempt in self.tables.select(Query("attempt", conditions({"rollout_id": rollout_id}))).items:
                if attempt.status in lifecycle.LIVE_ATTEMPT_STATUSES:
                    self.tables.replace_attempt(attempt, self._new_deadline(attempt, new))
        return lifecycle.with_attempt(new, latest)

    def delete_some(self, rollout_ids: Sequence[str]) -> tuple[list[str], int]:
        """Delete rollouts with all that belongs to them, until `SPANS_DELETED_AT_ONCE` are deleted.

        Returns:
            The ids of the deleted rollouts, and how many ids from the beginning are done with. Of the next rollout,
            some spans may be gone.
        """
        deleted: list[str] = []
        spans_left = SPANS_DELETED_AT_ONCE
        for done, rollout_id in enumerate(rollout_ids):
            spans_left -= self.tables.delete_spans(rollout_id, spans_left)
            if spans_left <= 0:
                return deleted, done
            try:
                row = self.tables.rollout(rollout_id)
            except DamagedRowError:  # its worker is unknown
                attempt = None
            else:
                if row is None:
                    continue
                attempt = row[1]
            if attempt is not None:
                self._change_worker(attempt, lifecycle.worker_without_attempt, time.time())
            self.tables.delete_rollout(rollout_id)
            deleted.append(rollout_id)
        return deleted, len(rollout_ids)

    def update_attempt(
        self,
        rollout_id: str,
        attempt_id: str,
        status: AttemptStatus | Unset = UNSET,
        worker_id: str | Unset = UNSET,
        last_heartbeat_time: float | Unset = UNSET,
        metadata: dict[str, Any] | Unset | None = UNSET,
    ) -> Attempt:
        now = time.time()
        rollout, latest, old = self._attempt(rollout_id, attempt_id, or_latest=True)
        fields = {
            "worker_id": worker_id,
            "last_heartbeat_time": last_heartbeat_time,
            "metadata": {} if metadata is None else metadata,
        }
        update = {name: value for name, value in fields.items() if value is not UNSET}
        new = Attempt(**{**vars(old), **update}) if update else old
        if "last_heartbeat_time" in update:  # the caller's clock may be hours off
            new = lifecycle.replace_fields(new, last_heartbeat_time=now)
        if status is not UNSET:
            new = lifecycle.attempt_with_status(new, status, now)
        self._replace_attempt(rollout, latest, old, new, now)
        if status in lifecycle.ENDED_ATTEMPT_STATUSES:
            self._change_worker(new, lifecycle.worker_without_attempt, now)
        elif new.status in lifecycle.LIVE_ATTEMPT_STATUSES and (status is not UNSET or "worker_id" in update):
            self._change_worker(new, lifecycle.worker_with_attempt, now)
        return new

    def add_many_spans(self, spans: Sequence[Span]) -> list[Span]:
        now = time.time()
        for span in spans:
            if abs(span.sequence_id) >= _GREATEST:
                raise ValueError(
                    f"span {span.span_id}: sequence_id {span.sequence_id} is out of range: the next ones need 64 bits"
                )
        by_attempt: dict[tuple[str, str], list[Span]] = {}
        for span in spans:
            by_attempt.setdefault((span.rollout_id, span.attempt_id), []).append(span)
        attempts = [(self._attempt(*ids), of_attempt) for ids, of_attempt in by_attempt.items()]
        stored: list[Span] = []
        for (rollout, latest, attempt), of_attempt in attempts:
            unnumbered = [index for index, span in enumerate(of_attempt) if span.sequence_id == 0]
            if unnumbered:  # a span with sequence id 0 is stored with the next one of its attempt
                ids = (attempt.rollout_id, attempt.attempt_id)
                number = self.tables.take_span_numbers(*ids, len(unnumbered)) or 0
                for sequence_id, index in enumerate(unnumbered, number):
                    of_attempt[index] = of_attempt[index].model_copy(update={"sequence_id": sequence_id})
            new = self.tables.insert_spans(attempt.rollout_id, attempt.attempt_id, of_attempt)
            if new:
                stored.extend(new)
                alive = lifecycle.attempt_after_span(attempt, now)
                self._replace_attempt(rollout, latest, attempt, alive, now)
                if attempt.status == "unresponsive":
                    self._change_worker(alive, lifecycle.worker_in_sight_again, now)
        if len(by_attempt) > 1:
            position = {(span.attempt_id, span.span_id): index for index, span in reversed(list(enumerate(spans)))}
            stored.sort(key=lambda span: position[span.attempt_id, span.span_id])
        return stored

    def get_many_span_sequence_ids(self, rollout_attempt_ids: Sequence[tuple[str, str]]) -> list[int]:
        numbers = []
        for rollout_id, attempt_id in rollout_attempt_ids:
            if attempt_id == "latest":
                attempt_id = self._attempt(rollout_id, attempt_id, or_latest=True)[2].attempt_id
            number = self.tables.take_span_numbers(rollout_id, attempt_id, 1)
            if number is None:
                raise _unknown_attempt(rollout_id, attempt_id)
            numbers.append(number)
        return numbers

    def add_resources(self, resources: NamedResources) -> ResourcesUpdate:
        return self.update_resources(_new_id("rs"), resources)

    def update_resources(self, resources_id: str, resources: NamedResources) -> ResourcesUpdate:
        now = time.time()
        old = self.tables.resources(resources_id)
        update = ResourcesUpdate(
            resources_id=resources_id,
            create_time=now if old is None else old.create_time,
            update_time=now,
            version=1 if old is None else old.version + 1,
            resources=resources,
        )
        self.tables.write_resources(update)
        return update

    def update_worker(self, worker_id: str, heartbeat_stats: dict[str, Any] | Unset = UNSET) -> Worker:
        update: dict[str, Any] = {"last_heartbeat_time": time.time()}
        if heartbeat_stats is not UNSET:
            update["heartbeat_stats"] = heartbeat_stats
        worker = (self.tables.worker(worker_id) or Worker(worker_id=worker_id)).model_copy(update=update)
        self.tables.write_worker(worker)
        return worker

    def check_health(self, now: Now) -> bool:
        """Mark attempts that have passed a limit, and move their rollouts; return False if there may be more of them.

        If only a jump of the clock, or the time without an open store, passed the limit, it gets a new deadline.
        """
        last, limit = (_END_OF_TIME, _ALL) if now.went_back else (now.time, _LOST_AT_ONCE)
        overdue = self.tables.overdue(last, limit)
        for rollout_id, attempt_id in overdue:
            try:
                rollout, latest, attempt = self._attempt(rollout_id, attempt_id)
            except DamagedRowError as error:
                logger.error("%s; its limits are not checked", error)
                continue
            status = lifecycle.overdue_status(attempt, rollout.config, now)
            if status is None:
                self.tables.replace_attempt(attempt, self._new_deadline(attempt, rollout, now))
                continue
            lost = lifecycle.attempt_with_status(attempt, status, now.time)
            self._replace_attempt(rollout, latest, attempt, lost, now.time)
            self._change_worker(lost, lifecycle.worker_out_of_sight)
        return len(overdue) < limit

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
        self._change_worker(attempt, lifecycle.worker_with_attempt, attempt.start_time, dequeued=dequeued)
        return construct(AttemptedRollout, {**vars(rollout), "attempt": attempt})

    def _rollout(self, rollout_id: str) -> tuple[Rollout, Attempt | None]:
        row = self.tables.rollout(rollout_id)
        if row is None:
            raise ValueError(f"no rollout {rollout_id}")
        return row

    def _attempt(
        self, rollout_id: str, attempt_id: str, *, or_latest: bool = False
    ) -> tuple[Rollout, Attempt, Attempt]:
        """Return the rollout, its latest attempt, and the attempt of this id (or "latest", if `or_latest`)."""
        rollout, latest = self._rollout(rollout_id)
        if latest is not None and (attempt_id == latest.attempt_id or (or_latest and attempt_id == "latest")):
            return rollout, latest, latest
        attempt = self.tables.attempt(rollout_id, attempt_id)
        if latest is None or attempt is None:
            raise _unknown_attempt(rollout_id, attempt_id)
        return rollout, latest, attempt

    def _change_worker(self, attempt: Attempt, change: Callable[..., Worker], *args: Any, **options: Any) -> None:
        """Store `change(worker, attempt, …)` of the worker of an attempt, if it has one."""
        if attempt.worker_id is None:
            return
        old = self.tables.worker(attempt.worker_id) or Worker(worker_id=attempt.worker_id)
        new = change(old, attempt, *args, **options)
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
    """Make a new id. Ids grow with time, which keeps indexes compact, and end in 48 random bits."""
    return f"{prefix}-{time.time_ns() >> 16:012x}{secrets.token_hex(6)}"


def _unknown_attempt(rollout_id: str, attempt_id: str) -> ValueError:
    return ValueError(f"no attempt {attempt_id} of rollout {rollout_id}")


_key: ContextVar[str | None] = ContextVar("key_of_write", default=None)


@contextmanager
def carried_out_once(key: str) -> Iterator[None]:
    """Skip the writes of a call in this context that were carried out under this key before."""
    token = _key.set(key)
    try:
        yield
    finally:
        _key.reset(token)


def once(operation: Callable[[Ledger], T], part: int) -> Callable[[Ledger], T]:
    """Return the operation of a write; it returns the earlier result if the key of this context has been used.

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
    if isinstance(result, list | tuple):
        return [_named(item) for item in result]
    if isinstance(result, AttemptedRollout):
        return {"AttemptedRollout": [result.rollout_id, result.attempt.attempt_id]}
    for kind, model in MODELS.items():
        if isinstance(result, model):
            return {model.__name__: [getattr(result, name) for name in IDS[kind]]}
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
        spans = tables.select(Query("span", conditions(dict(zip(IDS["span"], ids, strict=True))))).items
        return spans[0] if spans else None
    rollout = tables.rollout(ids[0])
    if rollout is None or kind == "Rollout":
        return rollout and rollout[0]
    return lifecycle.with_attempt(rollout[0], tables.attempt(*ids))
