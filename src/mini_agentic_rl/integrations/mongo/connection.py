"""The connection of `MongoLightningStore`: it checks the server, runs transactions and explains errors.

Transactions are retried as the specification of MongoDB's drivers demands, for as long as a setting allows. A
transaction reads one state and is committed by the majority of the members, in their journals: what it wrote, and what
it read, survives the death of a process and of the primary. An error that the server marks as transient (another
transaction changed the same document, or the primary went away before the commit) has changed nothing: everything is
run again. A commit whose outcome is unknown is sent again; the server carries it out once.
"""

from __future__ import annotations

import logging
import random
import secrets
import time
from collections.abc import Callable, Generator
from typing import Any, Final, TypeVar

import pymongo
from pymongo import MongoClient, ReadPreference, ReturnDocument, WriteConcern
from pymongo.client_session import ClientSession
from pymongo.errors import (
    ConfigurationError,
    ConnectionFailure,
    DocumentTooLarge,
    InvalidName,
    OperationFailure,
    PyMongoError,
    ServerSelectionTimeoutError,
)
from pymongo.read_concern import ReadConcern

from ...redaction import without_those_of
from ...store.base import LightningStoreError, StorageFailedError
from ...store.ledger import Changes
from ...store.tables import Tables
from .tables import COUNTERS, STATE, THE_LOCK, MongoTables, prepare

T = TypeVar("T")

_commands = logging.getLogger("pymongo.command")
if _commands.level == logging.NOTSET:  # DEBUG would log every document, with the messages of agents
    _commands.setLevel(logging.INFO)

_TOO_LARGE: Final = frozenset({10334, 17280, 17419, 17420})
_NO_SPACE: Final = 14031
_POLL_SECONDS: Final = 0.05
_ADVICE: Final = {
    13: "the user in the URL may not read and write the database; grant it the role readWrite",
    18: "the user or the password in the URL is wrong",
    8000: "the user or the password in the URL is wrong",
    _NO_SPACE: "no space is left on the disk of the server; free some",
}
"""Advice by error code."""


class MongoConnection:
    """Connections to one database. Thread-safe, not fork-safe.

    Args:
        url: `mongodb://…` or `mongodb+srv://…`.
        database: name of the database.
        name: name of the store in messages.
        timeout_seconds: limit for one operation, in seconds.

    Raises:
        ValueError: the URL or the name of the database is not valid.
    """

    def __init__(self, url: str, database: str, name: str, timeout_seconds: float) -> None:
        self._name = name
        self._timeout_seconds = timeout_seconds
        self._writer = secrets.token_hex(8)
        limit = max(1, int(timeout_seconds * 1000))
        try:
            self._client: MongoClient[Any] = MongoClient(
                url, appname="mini-agentic-rl", serverSelectionTimeoutMS=limit, socketTimeoutMS=limit
            )
            self._database = self._client.get_database(
                database,
                read_preference=ReadPreference.PRIMARY,
                read_concern=ReadConcern("majority"),
                write_concern=DURABLE,
            )
        except (ConfigurationError, InvalidName, ValueError) as error:
            raise ValueError(f"the store {name}: {without_those_of(url, str(error))}") from None

    def open(self) -> None:
        """Check the server, and create what is missing in the database."""
        with pymongo.timeout(self._timeout_seconds):
            hello = self._client.admin.command("hello")
            if "setName" not in hello and hello.get("msg") != "isdbgrid":
                raise LightningStoreError(
                    f"the store {self._name}: the MongoDB server is standalone and has no transactions; "
                    "start it as a replica set of one or more members: mongod --replSet rs0, then once "
                    "mongosh --eval 'rs.initiate()'"
                )
            prepare(self._database, self._name)

    def transaction(self, work: Callable[[Tables], Changes]) -> None:
        """Run `work` in a transaction that excludes every other writer, and commit it."""

        def body(session: ClientSession) -> None:
            lock = self._database[STATE].find_one_and_update(
                THE_LOCK, {"$inc": {"turn": 1}}, return_document=ReturnDocument.AFTER, session=session
            )
            if lock is None:
                raise LightningStoreError(f"the store {self._name} was dropped while it was open; open it again")
            tables = MongoTables(self._database, session, {name: lock[name] for name in COUNTERS})
            changes = work(tables)
            tables.write_counters(**({"news": f"{self._writer}/{lock['turn']}"} if changes else {}))

        run_transaction(self._client, body, self._timeout_seconds)

    def query(self, work: Callable[[Tables], T]) -> T:
        """Run `work`, which only reads, on a snapshot that includes the last majority commit."""
        answers: list[T] = []

        def body(session: ClientSession) -> None:
            answers.append(work(MongoTables(self._database, session)))

        run_transaction(self._client, body, self._timeout_seconds)
        return answers[-1]

    def foreign_writes(self) -> Generator[bool, None, None]:
        """Yield True first and whenever something may have changed that a caller waits for, else False.

        A transaction that changes such a thing writes the field `news` of the lock, which is polled here.
        """
        last = self._news()
        yield True
        while True:
            time.sleep(_POLL_SECONDS)
            news = self._news()
            yield news != last
            last = news

    def _news(self) -> Any:
        lock = self._database[STATE].find_one(THE_LOCK, {"news": 1})
        return None if lock is None else lock["news"]

    def explained(self, error: Exception) -> Exception | None:
        """Return an error of MongoDB with advice; a ValueError if it cannot store a value; None for other errors."""
        if isinstance(error, DocumentTooLarge) or (isinstance(error, OperationFailure) and error.code in _TOO_LARGE):
            return ValueError(
                f"the store {self._name}: MongoDB keeps at most 16 MB in one document; make the task, the span or the "
                f"resources smaller ({_short(error)})"
            )
        if isinstance(error, OverflowError):
            return ValueError(f"the store {self._name}: MongoDB keeps integers of at most 64 bits ({_short(error)})")
        if isinstance(error, PyMongoError):
            kind = StorageFailedError if getattr(error, "code", None) == _NO_SPACE else LightningStoreError
            return kind(f"the store {self._name}: {self._advice(error)} ({_short(error)})")
        return None

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _advice(self, error: PyMongoError) -> str:
        limit = f"{self._timeout_seconds:g} s"
        if isinstance(error, ServerSelectionTimeoutError):
            return (
                f"no primary of a MongoDB replica set answered within {limit}; "
                "start one (mongod --replSet rs0, and once rs.initiate()), or correct the URL"
            )
        if isinstance(error, OperationFailure) and error.code in _ADVICE:
            return _ADVICE[error.code]
        if error.has_error_label(UNKNOWN_OUTCOME):
            return f"a commit was not confirmed within {limit} and may have been carried out; raise timeout_seconds"
        if isinstance(error, OperationFailure) and error.has_error_label(TRANSIENT):
            return f"other processes kept it locked for more than {limit}; end those, or raise timeout_seconds"
        if error.timeout:
            return f"the MongoDB server took more than {limit}; raise timeout_seconds"
        if isinstance(error, ConnectionFailure):
            return "the connection to the MongoDB server was lost; see to the server, or correct the URL"
        return "MongoDB refused"


def _short(error: Exception) -> str:
    text = str(error).partition("\n")[0]
    return text.partition(", full error: ")[0].partition(", Timeout: ")[0].partition(" (configured timeouts: ")[0]


TRANSIENT: Final = "TransientTransactionError"
UNKNOWN_OUTCOME: Final = "UnknownTransactionCommitResult"
DURABLE: Final = WriteConcern(w="majority", j=True)

_FIRST_PAUSE_SECONDS: Final = 0.002
_LONGEST_PAUSE_SECONDS: Final = 0.1
_ABORT_SECONDS: Final = 1.0
_LEAST_SECONDS: Final = 0.05


def run_transaction(client: MongoClient[Any], body: Callable[[ClientSession], None], timeout_seconds: float) -> None:
    """Run `body` in a transaction and commit it. An exception of `body` rolls it back and goes on to the caller.

    Args:
        client: connections to the server.
        body: called with the session of the transaction, several times if it is retried; committed once.
        timeout_seconds: limit for all tries together, in seconds.
    """
    end = time.monotonic() + timeout_seconds
    pause = _FIRST_PAUSE_SECONDS
    with client.start_session() as session:
        while True:
            try:
                _run(session, body, end)
                _commit(session, end)
                return
            except PyMongoError as error:
                if not error.has_error_label(TRANSIENT) or time.monotonic() + pause > end:
                    raise
            time.sleep(random.uniform(0.0, pause))
            pause = min(pause * 1.5, _LONGEST_PAUSE_SECONDS)


def _run(session: ClientSession, body: Callable[[ClientSession], None], end: float) -> None:
    session.start_transaction(
        read_concern=ReadConcern("snapshot"), write_concern=DURABLE, read_preference=ReadPreference.PRIMARY
    )
    try:
        with pymongo.timeout(_left(end)):
            body(session)
    except BaseException:
        with pymongo.timeout(_ABORT_SECONDS):
            session.abort_transaction()
        raise


def _commit(session: ClientSession, end: float) -> None:
    while True:
        try:
            with pymongo.timeout(_left(end)):
                session.commit_transaction()
            return
        except PyMongoError as error:
            if not error.has_error_label(UNKNOWN_OUTCOME) or time.monotonic() >= end:
                raise
        time.sleep(_FIRST_PAUSE_SECONDS)


def _left(end: float) -> float:
    return max(_LEAST_SECONDS, end - time.monotonic())
