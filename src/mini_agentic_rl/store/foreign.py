"""Records of a store of agent-lightning 0.3, as documents: from its database, from files of it, or from its server.

Its one durable store is MongoDB. Each document there is a record as its model has it, and the partition of the trainer
that wrote it. `mongodump` writes such collections as BSON, `mongoexport` as JSON.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Final, Literal, Protocol, cast
from urllib.parse import urlsplit

from ..errors import MissingPackageError, UserError
from ..redaction import shown_address, without_those_of
from .base import LightningStore

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
"""Values as MongoDB writes them in JSON."""


class ForeignStore(Protocol):
    """Somewhere that records are."""

    def records(self, kind: Records) -> AsyncIterator[Document]:
        """Yield all records of a kind."""
        ...


def open_foreign(spec: str, *, partition: str | None = None, api_key: str | None = None) -> ForeignStore:
    """Return the records that `spec` names: `mongodb://…/database`, a folder of `mongodump` or `mongoexport`, or the
    `http://…` of a store server.

    Args:
        partition: only those of this trainer; None takes all. A server has only its own.

    Raises:
        UserError: there is nothing of the kind.
        MissingPackageError: the extra that it needs is not installed.
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
            "rollouts.bson or rollouts.json",
            setting="source",
        )
    return _DumpFolder(folder, partition)


class _DumpFolder:
    """Files of `mongodump` (`rollouts.bson`, perhaps `.gz`) or of `mongoexport` (`rollouts.json`, `rollouts.jsonl`)."""

    def __init__(self, folder: Path, partition: str | None) -> None:
        self._folder, self._partition = folder, partition
        if self._file("rollouts") is None:
            raise UserError(f"{folder}: the folder holds no rollouts.bson and no rollouts.json", setting="source")

    async def records(self, kind: Records) -> AsyncIterator[Document]:
        file = self._file(kind)
        if file is None:
            return
        try:
            with file.open("rb") as whole:
                opened = cast(IO[bytes], gzip.GzipFile(fileobj=whole)) if file.suffix == ".gz" else whole
                for document in _read(opened, file):
                    if _is_of(document, self._partition):
                        yield document
        except (OSError, EOFError, ValueError) as error:
            raise UserError(f"{file} cannot be read: {error}", setting="source") from error

    def _file(self, kind: Records) -> Path | None:
        names = [f"{kind}{suffix}" for suffix in (".bson", ".bson.gz", ".json", ".jsonl")]
        return next((self._folder / name for name in names if (self._folder / name).is_file()), None)


class _MongoCollections:
    """The collections themselves."""

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
            told = without_those_of(url, str(error))
            # Not `from` it: a traceback would quote the address.
            raise UserError(f"{shown_address(url)}: {told}", setting="source") from None

    async def records(self, kind: Records) -> AsyncIterator[Document]:
        wanted = {} if self._partition is None else {"partition_id": self._partition}
        try:
            for document in self._database[kind].find(wanted).sort("_id", 1):
                yield document
        except self._failed as error:
            told = without_those_of(self._url, str(error))
            raise UserError(f"{shown_address(self._url)} cannot be read: {told}", setting="source") from None


class _ServedStore:
    """A store server, whatever is behind it."""

    def __init__(self, store: LightningStore) -> None:
        self._store = store

    async def records(self, kind: Records) -> AsyncIterator[Document]:
        async for found in self._rollouts() if kind in ("rollouts", "attempts", "spans") else _none():
            if kind == "rollouts":
                yield found
                continue
            rollout_id = found["rollout_id"]
            each = self._store.query_attempts if kind == "attempts" else self._store.query_spans
            for item in await each(rollout_id):
                yield item.model_dump()
        if kind in ("resources", "workers"):
            query = self._store.query_resources if kind == "resources" else self._store.query_workers
            for record in await query():
                yield record.model_dump()

    async def _rollouts(self) -> AsyncIterator[Document]:
        offset = 0
        while True:
            page = await self._store.query_rollouts(sort_by="start_time", limit=_PAGE, offset=offset)
            for rollout in page:
                yield rollout.model_dump()
            offset += len(page)
            if not len(page) or offset >= page.total:
                return


async def _none() -> AsyncIterator[Document]:
    nothing: list[Document] = []
    for document in nothing:
        yield document


def _is_of(document: Document, partition: str | None) -> bool:
    return partition is None or document.get("partition_id") == partition


def _read(opened: IO[bytes], file: Path) -> Iterator[Document]:
    if ".bson" in file.suffixes:
        try:
            import bson
        except ImportError as error:
            raise MissingPackageError("BSON", "pymongo", extra="services", setting="source") from error
        try:
            yield from bson.decode_file_iter(opened)
        except bson.errors.BSONError as error:
            raise ValueError(str(error)) from error
        return
    first = opened.read(1)
    opened.seek(0)
    lines: Iterable[bytes] = opened
    if first == b"[":
        yield from json.load(opened, object_hook=_value)
        return
    for line in lines:
        if line.strip():
            yield json.loads(line, object_hook=_value)


def _value(found: dict[str, Any]) -> Any:
    if len(found) == 1:
        ((name, value),) = found.items()
        if name in _NUMBERS:
            return _NUMBERS[name](value)
    return found
