"""Import the records of a store of agent-lightning 0.3: ended rollouts with ids, attempts, spans; resources; workers.

Existing records stay as they are, so another import adds the new ones. Unfinished rollouts are left out. The records
are read from a MongoDB database, from JSON files of `mongoexport`, or from a store server.
"""

from __future__ import annotations

import gzip
import json
import logging
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, Protocol, TypeVar
from urllib.parse import urlsplit

from pydantic import BaseModel, ValidationError

from ..errors import MissingPackageError, UserError
from ..redaction import shown_address, without_those_of
from ..types import Attempt, ResourcesUpdate, Rollout, Span, Worker
from .base import LightningStore
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
    """Rollouts that existed."""
    unfinished: int = 0
    """Rollouts that have not ended."""
    strange: int = 0
    """Records that cannot be read."""
    reasons: Counter[str] = field(default_factory=Counter)
    """Reasons why records cannot be read."""


async def import_store(source: ForeignStore, destination: LightningStore) -> Imported:
    """Copy the records of `source`.

    Raises:
        UserError: the source cannot be read, or the destination is the client of a server.
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
        attempt = _validated(Attempt, document, counts)
        if attempt is not None:
            attempts[attempt.rollout_id].append(attempt)
    taken = await _take_rollouts(source, destination, attempts, counts)
    await _take_spans(source, destination, taken, counts)
    await _take_workers(source, destination, counts)
    return counts


async def _take_resources(source: ForeignStore, destination: LedgerStore, counts: Imported) -> None:
    records = [_validated(ResourcesUpdate, document, counts) async for document in source.records("resources")]
    updates = sorted((update for update in records if update is not None), key=lambda update: update.update_time)

    def write(tables: Tables) -> int:
        new = [update for update in updates if tables.resources(update.resources_id) is None]
        for update in new:
            tables.write_resources(update)
        return len(new)

    counts.resources = await destination.take_over(write)


async def _take_rollouts(
    source: ForeignStore, destination: LedgerStore, attempts: dict[str, list[Attempt]], counts: Imported
) -> set[tuple[str, str]]:
    """Return (rollout id, attempt id) of the imported attempts."""

    async def ended_rollouts() -> AsyncIterator[Rollout]:
        async for document in source.records("rollouts"):
            rollout = _validated(Rollout, document, counts)
            if rollout is not None and has_ended(rollout):
                yield rollout
            elif rollout is not None:
                counts.unfinished += 1

    def write(tables: Tables, batch: list[Rollout]) -> list[Rollout]:
        new = [rollout for rollout in batch if tables.rollout(rollout.rollout_id) is None]
        tables.insert_rollouts(new)
        for rollout in new:
            by_number = {attempt.sequence_id: attempt for attempt in attempts[rollout.rollout_id]}
            for _, attempt in sorted(by_number.items()):
                tables.insert_attempt(attempt, None)
        return new

    taken: set[tuple[str, str]] = set()
    async for batch in _batches(ended_rollouts()):
        new = await destination.take_over(partial(write, batch=batch))
        counts.rollouts += len(new)
        counts.known += len(batch) - len(new)
        for rollout in new:
            taken.update((attempt.rollout_id, attempt.attempt_id) for attempt in attempts[rollout.rollout_id])
    counts.attempts = len(taken)
    return taken


async def _take_spans(
    source: ForeignStore, destination: LedgerStore, taken: set[tuple[str, str]], counts: Imported
) -> None:
    async def spans() -> AsyncIterator[Span]:
        async for document in source.records("spans"):
            ids = (str(document.get("rollout_id")), str(document.get("attempt_id")))
            span = _validated(Span, document, counts) if ids in taken else None
            if span is not None:
                yield span

    def write(tables: Tables, batch: list[Span]) -> int:
        by_attempt: defaultdict[tuple[str, str], list[Span]] = defaultdict(list)
        for span in batch:
            by_attempt[span.rollout_id, span.attempt_id].append(span)
        return sum(len(tables.insert_spans(*ids, of_attempt)) for ids, of_attempt in by_attempt.items())

    async for batch in _batches(spans()):
        counts.spans += await destination.take_over(partial(write, batch=batch))


async def _batches(records: AsyncIterator[ModelT]) -> AsyncIterator[list[ModelT]]:
    batch: list[ModelT] = []
    async for record in records:
        batch.append(record)
        if len(batch) == _BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


async def _take_workers(source: ForeignStore, destination: LedgerStore, counts: Imported) -> None:
    records = [_validated(Worker, document, counts) async for document in source.records("workers")]
    gone = {"status": "unknown", "current_rollout_id": None, "current_attempt_id": None}

    def write(tables: Tables) -> int:
        new = [worker for worker in records if worker is not None and tables.worker(worker.worker_id) is None]
        for worker in new:
            tables.write_worker(worker.model_copy(update=gone))
        return len(new)

    counts.workers = await destination.take_over(write)


def _validated(model: type[ModelT], document: Document, counts: Imported) -> ModelT | None:
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


Document = Mapping[str, Any]
Records = Literal["resources", "rollouts", "attempts", "spans", "workers"]

DATABASE: Final = "agentlightning"
"""Name of the database where the URL names none."""
_PAGE: Final = 500
_NUMBERS: Final[Mapping[str, Callable[[str], Any]]] = {
    "$numberInt": int,
    "$numberLong": int,
    "$numberDouble": float,
    "$oid": str,
}
"""Values as `mongoexport` writes them in JSON."""


class ForeignStore(Protocol):
    """Source of records."""

    def records(self, kind: Records) -> AsyncIterator[Document]:
        """Yield all records of a kind."""
        ...


def open_foreign(spec: str, *, partition: str | None = None, api_key: str | None = None) -> ForeignStore:
    """Return the source that `spec` names: `mongodb://…/database`, a folder of `mongoexport`, or the `http://…` of a
    store server.

    Args:
        spec: See above.
        partition: Only the records of this trainer; None takes all. A server has only its own.
        api_key: Bearer token for a store server.

    Raises:
        UserError: `spec` names no source.
        MissingPackageError: a package is not installed.
    """
    scheme = spec.partition("://")[0].lower() if "://" in spec else ""
    if scheme in ("http", "https"):
        from .http.client import LightningStoreClient

        return _ServedStore(LightningStoreClient(spec, api_key=api_key, retry_seconds=1.0))
    if scheme in ("mongodb", "mongodb+srv"):
        return _MongoCollections(spec, partition)
    folder = Path(spec).expanduser()
    if scheme or not folder.is_dir():
        raise UserError(
            f"{shown_address(spec)}: expected mongodb://…/database, the http:// of a store server, or a folder with "
            "rollouts.json",
            setting="source",
        )
    return _ExportFolder(folder, partition)


class _ExportFolder:
    """Files of `mongoexport`: `rollouts.json` or `rollouts.jsonl`, also with `.gz`."""

    def __init__(self, folder: Path, partition: str | None) -> None:
        self._folder, self._partition = folder, partition
        if self._file("rollouts") is None:
            raise UserError(
                f"{folder}: the folder holds no rollouts.json; write one with mongoexport (the BSON of mongodump is "
                "not read)",
                setting="source",
            )

    async def records(self, kind: Records) -> AsyncIterator[Document]:
        file = self._file(kind)
        if file is None:
            return
        try:
            with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as lines:
                array = lines.read(1) == b"["
                lines.seek(0)
                documents: Iterable[Document]
                if array:
                    documents = json.load(lines, object_hook=_plain_value)
                else:
                    documents = (json.loads(line, object_hook=_plain_value) for line in lines if line.strip())
                for document in documents:
                    if self._partition is None or document.get("partition_id") == self._partition:
                        yield document
        except (OSError, EOFError, ValueError) as error:
            raise UserError(f"{file} cannot be read: {error}", setting="source") from error

    def _file(self, kind: Records) -> Path | None:
        names = [f"{kind}{suffix}" for suffix in (".json", ".json.gz", ".jsonl", ".jsonl.gz")]
        return next((self._folder / name for name in names if (self._folder / name).is_file()), None)


class _MongoCollections:
    """The collections of a MongoDB database."""

    def __init__(self, url: str, partition: str | None) -> None:
        try:
            import pymongo
        except ImportError as error:
            raise MissingPackageError("a MongoDB database", "pymongo", extra="services", setting="source") from error
        self._failed, self._url = pymongo.errors.PyMongoError, url
        self._partition = partition
        try:
            client: Any = pymongo.MongoClient(url, serverSelectionTimeoutMS=10_000)
            self._database = client[urlsplit(url).path.strip("/") or DATABASE]
        except (self._failed, ValueError) as error:
            # No `from error`: a traceback would quote the address.
            message = f"{shown_address(url)}: {without_those_of(url, str(error))}"
            raise UserError(message, setting="source") from None

    async def records(self, kind: Records) -> AsyncIterator[Document]:
        wanted = {} if self._partition is None else {"partition_id": self._partition}
        try:
            for document in self._database[kind].find(wanted).sort("_id", 1):
                yield document
        except self._failed as error:
            message = f"{shown_address(self._url)} cannot be read: {without_those_of(self._url, str(error))}"
            raise UserError(message, setting="source") from None


class _ServedStore:
    """A store server."""

    def __init__(self, store: LightningStore) -> None:
        self._store = store

    async def records(self, kind: Records) -> AsyncIterator[Document]:
        if kind in ("resources", "workers"):
            query = self._store.query_resources if kind == "resources" else self._store.query_workers
            for record in await query():
                yield record.model_dump()
            return
        query_items = self._store.query_attempts if kind == "attempts" else self._store.query_spans
        offset, total = 0, 1
        while offset < total:
            page = await self._store.query_rollouts(sort_by="start_time", limit=_PAGE, offset=offset)
            for rollout in page:
                records = [rollout] if kind == "rollouts" else await query_items(rollout.rollout_id)
                for item in records:
                    yield item.model_dump()
            offset, total = offset + len(page), page.total if len(page) else 0


def _plain_value(fields: dict[str, Any]) -> Any:
    """Return the value of an object of MongoDB's extended JSON."""
    if len(fields) == 1:
        ((name, value),) = fields.items()
        if name in _NUMBERS:
            return _NUMBERS[name](value)
    return fields
