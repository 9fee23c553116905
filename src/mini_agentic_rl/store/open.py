"""Open a store by its address, queue failed rollouts again, and copy finished rollouts of another store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ..errors import UserError
from ..plugins import load_plugin
from ..redaction import HIDDEN, shown_address
from ..types import Attempt, EnqueueRolloutRequest, Rollout, Span
from .base import LightningStore
from .ledger_store import LedgerStore
from .lifecycle import has_ended
from .tables import Tables

RUN_STORE_FILE: Final = "rollouts.db"
"""Name of the store file in the folder of a training run."""
MEMORY: Final = "memory"
"""Address of a new store in memory."""


def open_store(
    spec: str | Path, *, api_key: str | None = None, create: bool = True, retry_seconds: float = 60.0
) -> LightningStore:
    """Open the store that `spec` names; the caller closes it.

    | spec | store |
    |---|---|
    | `memory` | a new one in this process |
    | a file, or `sqlite:///` and a file | `SqlLightningStore` on that SQLite file |
    | the folder of a training run | `SqlLightningStore` on the `rollouts.db` in it |
    | `postgresql://…` | `SqlLightningStore` on that database |
    | `mongodb://…/database` | `MongoLightningStore` on that database |
    | `http://…`, `https://…` | `LightningStoreClient` of the store server there |

    Args:
        spec: See above.
        api_key: Bearer token, for a store server.
        create: Create a missing file; False: raise an error.
        retry_seconds: Time for which calls retry a store server that cannot be reached.

    Raises:
        UserError: `spec` names no store (the message lists the forms), or the store cannot be opened.
    """
    text = str(spec)
    scheme = text.partition("://")[0].lower() if "://" in text else ""
    if f"://{HIDDEN}@" in text:
        raise UserError(f"store {text}: its user and password are kept in no file: give the whole URL again")
    if text == MEMORY:
        from .memory import InMemoryLightningStore

        return InMemoryLightningStore()
    if scheme in ("http", "https"):
        from .http.client import LightningStoreClient

        return LightningStoreClient(text, api_key=api_key, retry_seconds=retry_seconds)
    if scheme.partition("+")[0] in ("postgresql", "postgres"):
        from .sql import SqlLightningStore

        return SqlLightningStore(text)
    if scheme not in ("", "sqlite"):
        opener = load_plugin("stores", scheme, setting=None)
        if opener is not None:
            opened: LightningStore = opener(text)
            return opened
        raise UserError(
            f"store {shown_address(text)}: expected a run folder, a .db file, sqlite:///file, postgresql://, "
            "mongodb:// or http://"
        )
    return _open_file(text.removeprefix("sqlite:///"), create=create)


def _open_file(name: str, *, create: bool) -> LightningStore:
    from .sql import SqlLightningStore

    path = Path(name).expanduser()
    if path.is_dir():
        path = path / RUN_STORE_FILE
        if not path.exists():
            raise UserError(f"store {name}: the folder holds no {RUN_STORE_FILE}; name a run folder or a .db file")
    elif not create and not path.exists():
        raise UserError(f"store {name}: there is no such file or folder")
    return SqlLightningStore(path)


RETRY_OF: Final = "retry_of"
"""Key in the metadata of the new rollout: the id of the rollout that failed."""


async def retry_rollouts(store: LightningStore, rollout_ids: Sequence[str] | None = None) -> list[Rollout]:
    """Queue each failed rollout again as a new one, with the same input, mode, resources, config and metadata.

    Args:
        store: Store of the rollouts.
        rollout_ids: Ids of the rollouts; None: every failed rollout that has not been queued again before.

    Returns:
        The new rollouts, in the order of the old ones; `metadata["retry_of"]` names the old one.

    Raises:
        ValueError: an id names no rollout, or one that has not failed; then none is queued.
    """
    if rollout_ids is None:
        retried = {rollout.metadata.get(RETRY_OF) for rollout in await store.query_rollouts()}
        failed = await store.query_rollouts(status_in=["failed"])
        old = [rollout for rollout in failed if rollout.rollout_id not in retried]
    else:
        old = [await _failed(store, rollout_id) for rollout_id in dict.fromkeys(rollout_ids)]
    requests = [
        EnqueueRolloutRequest(
            input=rollout.input,
            mode=rollout.mode,
            resources_id=rollout.resources_id,
            config=rollout.config,
            metadata={**rollout.metadata, RETRY_OF: rollout.rollout_id},
        )
        for rollout in old
    ]
    return list(await store.enqueue_many_rollouts(requests)) if requests else []


async def _failed(store: LightningStore, rollout_id: str) -> Rollout:
    rollout = await store.get_rollout_by_id(rollout_id)
    if rollout is None:
        raise ValueError(f"no rollout {rollout_id}")
    if rollout.status != "failed":
        raise ValueError(f"rollout {rollout_id} is {rollout.status}: only a failed rollout can be tried again")
    return rollout


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

    The source may be a store server of agent-lightning 0.3. Records that the destination already has stay as they are.

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
    updates = sorted(await source.query_resources(), key=lambda update: update.update_time)
    workers = await source.query_workers()
    gone = {"status": "unknown", "current_rollout_id": None, "current_attempt_id": None}

    def write(tables: Tables) -> tuple[int, int]:
        new_updates = [update for update in updates if tables.resources(update.resources_id) is None]
        for update in new_updates:
            tables.write_resources(update)
        new_workers = [worker for worker in workers if tables.worker(worker.worker_id) is None]
        for worker in new_workers:
            tables.write_worker(worker.model_copy(update=gone))
        return len(new_updates), len(new_workers)

    counts.resources, counts.workers = await destination.take_over(write)
    offset, total = 0, 1
    while offset < total:
        page = await source.query_rollouts(sort_by="start_time", limit=_PAGE, offset=offset)
        for rollout in page:
            if has_ended(rollout):
                await _import_rollout(rollout, source, destination, counts)
            else:
                counts.unfinished += 1
        offset, total = offset + len(page), page.total if len(page) else 0
    return counts


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
