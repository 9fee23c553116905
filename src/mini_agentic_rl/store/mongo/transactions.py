"""Transactions in MongoDB, retried as its drivers' specification wants it, for as long as a setting allows.

A transaction reads one state and is committed by the majority of the members, in their journals: what it wrote, and
what it read, outlives the death of a process and of the primary. An error that the server marks as transient (another
transaction changed the same document, or the primary went away before the commit) has changed nothing: everything is
run again. A commit whose outcome is unknown is sent again; the server carries it out once.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any, Final

import pymongo
from pymongo import MongoClient, ReadPreference, WriteConcern
from pymongo.client_session import ClientSession
from pymongo.errors import PyMongoError
from pymongo.read_concern import ReadConcern

TRANSIENT: Final = "TransientTransactionError"
UNKNOWN_OUTCOME: Final = "UnknownTransactionCommitResult"
DURABLE: Final = WriteConcern(w="majority", j=True)

_FIRST_PAUSE_SECONDS: Final = 0.002
_LONGEST_PAUSE_SECONDS: Final = 0.1
_ABORT_SECONDS: Final = 1.0
_LEAST_SECONDS: Final = 0.05


def run_transaction(client: MongoClient[Any], body: Callable[[ClientSession], None], timeout_seconds: float) -> None:
    """Run `body` in a transaction and commit it. What `body` raises rolls it back and goes on.

    Args:
        client: The connections to the server.
        body: Is given the session of the transaction; may be run several times, but is committed once.
        timeout_seconds: How long all of it may take.

    Raises:
        PyMongoError: the transaction failed. With the label `UNKNOWN_OUTCOME`, it may have been committed; else it was
            not. With the label `TRANSIENT`, the time was up before it could be.
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
