"""What the ledger needs of a storage: plain reads and writes, called inside one transaction.

The implementations keep no rules of their own beyond these: a rollout is in the queue exactly while its status is
`queuing` or `requeuing`, at the end of it when it enters; the attempt inserted last is the latest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from ..types import Attempt, PaginatedResult, ResourcesUpdate, Rollout, Span, Worker
from .query import Query
from .vocabulary import LightningStoreStatistics


class Tables(Protocol):
    """One storage, in one transaction."""

    def rollout(self, rollout_id: str) -> tuple[Rollout, Attempt | None] | None:
        """The rollout and its latest attempt."""

    def queued(self, limit: int) -> Sequence[tuple[Rollout, Attempt | None]]:
        """The first rollouts of the queue and their latest attempts; they stay in it."""

    def has_queued(self) -> bool:
        """Whether the queue holds anything."""

    def insert_rollouts(self, rollouts: Sequence[Rollout]) -> None:
        """Add new rollouts, in this order."""

    def replace_rollout(self, old: Rollout, new: Rollout) -> None:
        """Store the new state of a rollout."""

    def attempt(self, rollout_id: str, attempt_id: str) -> Attempt | None:
        """One attempt of a rollout."""

    def insert_attempt(self, attempt: Attempt, deadline: float | None) -> None:
        """Add the next attempt of a rollout."""

    def replace_attempt(self, attempt: Attempt, deadline: float | None) -> None:
        """Store the new state of an attempt."""

    def overdue(self, now: float) -> Sequence[tuple[str, str]]:
        """(rollout id, attempt id) of attempts whose deadline has come."""

    def next_deadline(self) -> float | None:
        """A time before which no attempt becomes overdue; None if none ever does."""

    def take_span_numbers(self, rollout_id: str, attempt_id: str, count: int) -> int | None:
        """The first of `count` fresh numbers for spans of the attempt; None if there is no such attempt."""

    def insert_spans(self, rollout_id: str, attempt_id: str, spans: Sequence[Span]) -> Sequence[Span]:
        """Add spans of one attempt; returns those whose span id was new. Later numbers are above theirs."""

    def latest_resources(self) -> ResourcesUpdate | None:
        """The set of resources written last."""

    def resources(self, resources_id: str) -> ResourcesUpdate | None:
        """One set of resources."""

    def write_resources(self, update: ResourcesUpdate) -> None:
        """Add or replace a set of resources; it is the latest."""

    def worker(self, worker_id: str) -> Worker | None:
        """One worker."""

    def write_worker(self, worker: Worker) -> None:
        """Add or replace a worker."""

    def select(self, query: Query) -> PaginatedResult[Any]:
        """One page of rollouts (with their latest attempts), attempts, spans, resources or workers."""

    def ended(self, rollout_ids: Sequence[str]) -> tuple[Sequence[Rollout], Sequence[str]]:
        """Those that have ended, in the order given, and the ids that name nothing."""

    def counts(self) -> LightningStoreStatistics:
        """The totals of the statistics."""
