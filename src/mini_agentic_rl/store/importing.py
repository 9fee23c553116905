"""Copy the finished rollouts of one store into another, such as those of a store server of agent-lightning 0.3."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ..errors import UserError
from ..types import Attempt, Rollout, Span
from .base import LightningStore
from .ledger_store import LedgerStore
from .lifecycle import has_ended
from .tables import Tables

_PAGE: Final = 500


@dataclass
class Imported:
    """Counts of an import."""

    rollouts: int = 0
    attempts: int = 0
    spans: int = 0
    resources: int = 0
    workers: int = 0
    known: int = 0
    """Rollouts that the destination already has."""
    unfinished: int = 0
    """Rollouts that have not ended."""


async def import_store(source: LightningStore, destination: LightningStore) -> Imported:
    """Copy the rollouts that have ended, with their attempts and spans, and all resources and workers.

    Records that the destination already has stay as they are.

    Raises:
        UserError: the source cannot be read, or the destination is the client of a server.
    """
    if not isinstance(destination, LedgerStore):
        raise UserError(
            "records are imported by a store itself, not through its server: give a .db file, postgresql:// or "
            "mongodb://",
            setting="store",
        )
    counts = Imported()
    await _import_resources(source, destination, counts)
    offset, total = 0, 1
    while offset < total:
        page = await source.query_rollouts(sort_by="start_time", limit=_PAGE, offset=offset)
        for rollout in page:
            if has_ended(rollout):
                await _import_rollout(rollout, source, destination, counts)
            else:
                counts.unfinished += 1
        offset, total = offset + len(page), page.total if len(page) else 0
    await _import_workers(source, destination, counts)
    return counts


async def _import_resources(source: LightningStore, destination: LedgerStore, counts: Imported) -> None:
    updates = sorted(await source.query_resources(), key=lambda update: update.update_time)

    def write(tables: Tables) -> int:
        new = [update for update in updates if tables.resources(update.resources_id) is None]
        for update in new:
            tables.write_resources(update)
        return len(new)

    counts.resources = await destination.take_over(write)


async def _import_rollout(rollout: Rollout, source: LightningStore, destination: LedgerStore, counts: Imported) -> None:
    attempts: dict[str, Attempt] = {
        attempt.attempt_id: attempt for attempt in await source.query_attempts(rollout.rollout_id)
    }
    spans: dict[str, list[Span]] = {attempt_id: [] for attempt_id in attempts}
    for span in await source.query_spans(rollout.rollout_id):
        if span.attempt_id in spans:
            spans[span.attempt_id].append(span)
    without_attempt = Rollout(**{name: getattr(rollout, name) for name in Rollout.model_fields})

    def write(tables: Tables) -> int | None:
        """Return the number of stored spans, or None if the rollout is known."""
        if tables.rollout(rollout.rollout_id) is not None:
            return None
        tables.insert_rollouts([without_attempt])
        for attempt in attempts.values():
            tables.insert_attempt(attempt, None)
        return sum(
            len(tables.insert_spans(rollout.rollout_id, attempt_id, of_attempt))
            for attempt_id, of_attempt in spans.items()
        )

    stored_spans = await destination.take_over(write)
    if stored_spans is None:
        counts.known += 1
        return
    counts.rollouts += 1
    counts.attempts += len(attempts)
    counts.spans += stored_spans


async def _import_workers(source: LightningStore, destination: LedgerStore, counts: Imported) -> None:
    workers = await source.query_workers()
    gone = {"status": "unknown", "current_rollout_id": None, "current_attempt_id": None}

    def write(tables: Tables) -> int:
        new = [worker for worker in workers if tables.worker(worker.worker_id) is None]
        for worker in new:
            tables.write_worker(worker.model_copy(update=gone))
        return len(new)

    counts.workers = await destination.take_over(write)
