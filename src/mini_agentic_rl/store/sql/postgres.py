"""PostgreSQL as the database of a store, for runners and algorithms on several machines.

Every writing transaction first takes one lock of the whole database (an advisory one, which ends with the transaction),
so that there is one writer at a time, as the ledger's rules demand, and what it reads is what the one before it left.
Readers never wait. NOTIFY announces the changes of a transaction for which other processes may wait.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Final, cast

from sqlalchemy import URL, Connection, create_engine, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import ConnectionPoolEntry

from ...errors import MissingPackageError
from ..database_store import READERS
from ..errors import LightningStoreError, StorageFailedError, StoreUnreachableError
from ..waiting import Changes
from .backend import WRITES, SqlBackend

if TYPE_CHECKING:
    import psycopg

_LOCK: Final = 0x61676C  # a number that other programs in the database are not likely to lock
_CHANNEL: Final = "agl_store"
_CONNECT_SECONDS: Final = 10
_LISTEN_SECONDS: Final = 0.1
_LOOK_SECONDS: Final = 5.0
_BEGIN_WRITE: Final = f"BEGIN ISOLATION LEVEL READ COMMITTED; SELECT pg_advisory_xact_lock({_LOCK})"
_BEGIN_READ: Final = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"

_NO_TEXTS_IN_THE_LOG: Final = (
    "SELECT set_config(name, '0', false) FROM pg_settings WHERE name = 'log_parameter_max_length_on_error'"
)
"""Whatever the server is set to, a statement of ours that fails is logged without the texts that it was to write. (What
it logs of statements that succeed, only its owner can set.)"""

_AWAY: Final = (
    "the server does not answer; start it, or correct host and port of the store URL. What was being written may have "
    "been written or not"
)
_ADVICE_BY_STATE: Final = {
    "25006": "it can only be read there: name the primary server in the store URL",
    "25P03": "this process stood still for longer than busy_timeout_seconds amid a write, which was undone",
    "42501": "the user may not do this there: grant it the right to create and change tables, or name another user",
    "53100": "the server has no space left; free some",
    "58030": "the server's disk cannot be read or written; mend that",
    "53300": "the server has no connection left; raise its max_connections, or use fewer processes",
}
_FAILED: Final = ("53100", "58030")
_TOO_LONG: Final = "54000"  # a value such as a worker's name is too long for the index that finds it again
_ADVICE_BY_REASON: Final = (
    (("starting up", "shutting down", "not yet accepting"), "the server is not ready; try again in a moment"),
    (("too many clients", "too many connections"), _ADVICE_BY_STATE["53300"]),
    (("pg_hba", "authentication", "password", "role"), "it refuses the user or the password of the store URL"),
    (("database",), "there is no such database; make it (createdb), or correct the store URL"),
)
"""Words of the server's message and advice, for errors of connecting, which have no state."""


class PostgresBackend(SqlBackend):
    """PostgreSQL database in which a store keeps tables named `agl_…` beside those of others.

    Raises:
        LightningStoreError: the driver is not installed.
    """

    alone = False

    def __init__(self, url: URL, busy_timeout_seconds: float) -> None:
        name = url.set(query={}).render_as_string(hide_password=True)
        self._busy_timeout_seconds = busy_timeout_seconds
        self._own_session = 0
        try:
            import psycopg

            self._error: type[Exception] = psycopg.Error
            self._value_error: type[Exception] = psycopg.DataError
            engine = create_engine(
                url.set(drivername="postgresql+psycopg"),
                isolation_level="AUTOCOMMIT",  # transactions begin where `begin` says, not where the driver guesses
                connect_args={"connect_timeout": _CONNECT_SECONDS, "application_name": "mini-agentic-rl"}
                | dict(url.query),
                pool_size=READERS + 2,
                pool_pre_ping=True,  # the server may have been restarted in the meantime
            )
        except ImportError as error:
            raise MissingPackageError(f"the store {name}", "psycopg", extra="services") from error
        milliseconds = max(1, round(busy_timeout_seconds * 1000))

        def configure(connection: psycopg.Connection[Any], _: ConnectionPoolEntry) -> None:
            # A writer that is stopped or cut off amid a transaction must not lock the others out without end.
            connection.execute(f"SET lock_timeout = {milliseconds}")
            connection.execute(f"SET idle_in_transaction_session_timeout = {milliseconds}")
            connection.execute(_NO_TEXTS_IN_THE_LOG)

        event.listen(engine, "connect", configure)
        event.listen(engine, "begin", _begin)
        super().__init__(name, engine)

    def publish(self, connection: Connection, changes: Changes) -> None:
        if changes:
            driver = _driver_of(connection)
            self._own_session = driver.info.backend_pid
            driver.execute(f"NOTIFY {_CHANNEL}")

    def foreign_writes(
        self, in_writing_thread: Callable[[Callable[[Connection], int]], int]
    ) -> Generator[bool, None, None]:
        """Also yields True every few seconds, for a pooler between may swallow notifications."""
        with self.engine.connect() as connection:
            driver = _driver_of(connection)
            connection.detach()  # from the pool: it listens, and it is closed at the end
            driver.execute(f"LISTEN {_CHANNEL}")
            yield True
            looked_at = time.monotonic()
            while True:
                senders = [notice.pid for notice in driver.notifies(timeout=_LISTEN_SECONDS, stop_after=1)]
                look = time.monotonic() - looked_at > _LOOK_SECONDS
                if look:
                    looked_at = time.monotonic()
                yield look or any(sender != self._own_session for sender in senders)

    def lost(self, connection: Connection) -> bool:
        return connection.invalidated or _driver_of(connection).closed

    def explained(self, error: Exception) -> Exception | None:
        cause = error.orig if isinstance(error, DBAPIError) else error
        if not isinstance(cause, self._error):
            return None
        reason = str(cause).strip().replace("\n", " ")
        if isinstance(cause, self._value_error) or getattr(cause, "sqlstate", None) == _TOO_LONG:
            return ValueError(f"PostgreSQL cannot keep this: {reason}")
        advice = self._advice(cause, reason)
        kind = StoreUnreachableError if advice is _AWAY else LightningStoreError
        if getattr(cause, "sqlstate", None) in _FAILED:
            kind = StorageFailedError
        return kind(f"the store {self.name}: {advice} ({reason})")

    def _advice(self, error: Any, reason: str) -> str:
        if error.sqlstate == "55P03":
            return (
                f"another process kept it locked for more than {self._busy_timeout_seconds:g} s; "
                "end that process, or raise busy_timeout_seconds"
            )
        if error.sqlstate in _ADVICE_BY_STATE:
            return _ADVICE_BY_STATE[error.sqlstate]
        if error.sqlstate is None and "FATAL" in reason:
            line = reason.partition("FATAL")[2]
            for words, advice in _ADVICE_BY_REASON:
                if any(word in line for word in words):
                    return advice
        if error.sqlstate is None or error.sqlstate.startswith(("08", "57P")):
            return _AWAY
        return "PostgreSQL refused"


def _begin(connection: Connection) -> None:
    writes = connection.get_execution_options().get(WRITES, False)
    driver = _driver_of(connection)
    try:
        driver.execute(_BEGIN_WRITE if writes else _BEGIN_READ)
    except Exception:
        if not driver.closed:
            driver.rollback()
        raise


def _driver_of(connection: Connection) -> psycopg.Connection[Any]:
    return cast("psycopg.Connection[Any]", connection.connection.driver_connection)
