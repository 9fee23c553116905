"""Take over what another store has recorded: rollouts that have ended, with their ids, attempts, spans and resources.

What is here already stays as it is, so a further import adds what is new. A rollout that has not ended is left out: its
runner knows nothing of this store.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from pydantic import BaseModel, ValidationError

from ..errors import UserError
from ..types import Attempt, ResourcesUpdate, Rollout, Span, Worker
from .base import LightningStore
from .foreign import Document, ForeignStore
from .ledger_store import LedgerStore
from .lifecycle import has_ended
from .tables import Tables

logger = logging.getLogger(__name__)

ModelT = TypeVar("ModelT", bound=BaseModel)

_BATCH: Final = 500


@dataclass
class Imported:
    """Counts of an import."""

    rollouts: int = 0
    attempts: int = 0
    spans: int = 0
    resources: int = 0
    workers: int = 0
    known: int = 0
    """Rollouts that were here already."""
    unfinished: int = 0
    """Rollouts that have not ended."""
    strange: int = 0
    """Records that cannot be read, or belong to nothing."""
    reasons: Counter[str] = field(default_factory=Counter)
    """Reasons for which records cannot be read."""


async def import_store(source: ForeignStore, destination: LightningStore) -> Imported:
    """Copy the records of `source`.

    Raises:
        UserError: the source cannot be read, or the destination is one that only its own server writes.
    """
    if not isinstance(destination, LedgerStore):
        raise UserError(
            "records are taken over by a store itself, not through its server: give a .db file, postgresql:// or "
            "mongodb://",
            setting="store",
        )
    counts = Imported()
    attempts: defaultdict[str, list[Attempt]] = defaultdict(list)
    await _take_resources(source, destination, counts)
    async for document in source.records("attempts"):
        attempt = _read(Attempt, document, counts)
        if attempt is not None:
            attempts[attempt.rollout_id].append(attempt)
    taken = await _take_rollouts(source, destination, attempts, counts)
    await _take_spans(source, destination, taken, counts)
    await _take_workers(source, destination, counts)
    return counts


async def _take_resources(source: ForeignStore, destination: LedgerStore, counts: Imported) -> None:
    found = [_read(ResourcesUpdate, document, counts) async for document in source.records("resources")]
    updates = sorted((update for update in found if update is not None), key=lambda update: update.update_time)

    def write(tables: Tables) -> int:
        new = [update for update in updates if tables.resources(update.resources_id) is None]
        for update in new:
            tables.write_resources(update)
        return len(new)

    counts.resources = await destination.take_over(write)


async def _take_rollouts(
    source: ForeignStore, destination: LedgerStore, attempts: dict[str, list[Attempt]], counts: Imported
) -> set[tuple[str, str]]:
    """Return the attempts that were taken over."""
    taken: set[tuple[str, str]] = set()
    batch: list[Rollout] = []

    async def flush() -> None:
        ready, batch[:] = list(batch), []

        def write(tables: Tables) -> list[Rollout]:
            new = [rollout for rollout in ready if tables.rollout(rollout.rollout_id) is None]
            tables.insert_rollouts(new)
            for rollout in new:
                for attempt in _ordered(attempts[rollout.rollout_id]):
                    tables.insert_attempt(attempt, None)
            return new

        new = await destination.take_over(write)
        counts.rollouts += len(new)
        counts.known += len(ready) - len(new)
        for rollout in new:
            taken.update((attempt.rollout_id, attempt.attempt_id) for attempt in attempts[rollout.rollout_id])

    async for document in source.records("rollouts"):
        rollout = _read(Rollout, document, counts)
        if rollout is None:
            continue
        if not has_ended(rollout):
            counts.unfinished += 1
            continue
        batch.append(rollout)
        if len(batch) >= _BATCH:
            await flush()
    await flush()
    counts.attempts = len(taken)
    return taken


async def _take_spans(
    source: ForeignStore, destination: LedgerStore, taken: set[tuple[str, str]], counts: Imported
) -> None:
    batch: list[Span] = []

    async def flush() -> None:
        ready, batch[:] = list(batch), []
        groups: defaultdict[tuple[str, str], list[Span]] = defaultdict(list)
        for span in ready:
            groups[span.rollout_id, span.attempt_id].append(span)

        def write(tables: Tables) -> int:
            return sum(len(tables.insert_spans(*ids, spans)) for ids, spans in groups.items())

        counts.spans += await destination.take_over(write)

    async for document in source.records("spans"):
        ids = (str(document.get("rollout_id")), str(document.get("attempt_id")))
        span = _read(Span, document, counts) if ids in taken else None
        if span is not None:
            batch.append(span)
        if len(batch) >= _BATCH:
            await flush()
    await flush()


async def _take_workers(source: ForeignStore, destination: LedgerStore, counts: Imported) -> None:
    found = [_read(Worker, document, counts) async for document in source.records("workers")]
    gone = {"status": "unknown", "current_rollout_id": None, "current_attempt_id": None}

    def write(tables: Tables) -> int:
        new = [worker for worker in found if worker is not None and tables.worker(worker.worker_id) is None]
        for worker in new:
            tables.write_worker(worker.model_copy(update=gone))
        return len(new)

    counts.workers = await destination.take_over(write)


def _ordered(attempts: Sequence[Attempt]) -> list[Attempt]:
    """Return a rollout's attempts, each number once, the latest last."""
    return [attempt for _, attempt in sorted({attempt.sequence_id: attempt for attempt in attempts}.items())]


def _read(model: type[ModelT], document: Document, counts: Imported) -> ModelT | None:
    try:
        return model.model_validate({name: value for name, value in document.items() if name in model.model_fields})
    except (ValidationError, TypeError) as error:
        counts.strange += 1
        first = error.errors()[0] if isinstance(error, ValidationError) else {"loc": (), "msg": str(error)}
        where = ".".join(map(str, first["loc"]))
        reason = f"{model.__name__}.{where}: {first['msg']}"
        if not counts.reasons[reason]:
            logger.warning("a record is left out: %s", reason)
        counts.reasons[reason] += 1
        return None
