"""The differences between SQLite and PostgreSQL: connecting, excluding other writers, explaining errors."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, cast

from sqlalchemy import URL, Connection, Engine, create_engine, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import ConnectionPoolEntry, QueuePool

from ...errors import MissingPackageError
from ...files import make_private_file, make_private_folder
from ..base import LightningStoreError, StorageFailedError, StoreUnreachableError
from ..database_store import READERS
from ..ledger import Changes

if TYPE_CHECKING:
    import psycopg


WRITES: Final = "agl_writes"
"""Execution option of the writing connection, whose transactions exclude other writers."""


class SqlBackend(ABC):
    """The SQLite file or the PostgreSQL database under a `SqlLightningStore`.

    Args:
        name: Name of the database in messages.
        engine: Its connections. The writing ones have the execution option `WRITES`; a transaction of the others reads
            one state.
    """

    alone: bool
    """True if the database holds nothing but the store."""

    def __init__(self, name: str, engine: Engine) -> None:
        self.name = name
        self.engine = engine

    def begin(self, connection: Connection) -> None:
        """Begin a transaction on the connection that writes."""
        connection.begin()

    def end(self, connection: Connection, *, commit: bool) -> None:
        """Commit or roll back the transaction on the connection that writes."""
        if commit:
            connection.commit()
        else:
            connection.rollback()

    @abstractmethod
    def publish(self, connection: Connection, changes: Changes) -> None:
        """Notify waiting callers in other processes when this transaction is committed."""

    @abstractmethod
    def foreign_writes(
        self, in_writing_thread: Callable[[Callable[[Connection], int]], int]
    ) -> Generator[bool, None, None]:
        """Yield as `DatabaseStore._foreign_writes` does.

        `in_writing_thread` calls a function with the writing connection, between transactions.
        """

    def empty_log(self, connection: Connection) -> bool:
        """Remove deleted content from the write-ahead log, between transactions; False while others read the log."""
        return True

    @abstractmethod
    def lost(self, connection: Connection) -> bool:
        """Return True if a connection cannot be used any more."""

    @abstractmethod
    def explained(self, error: Exception) -> Exception | None:
        """Return what `DatabaseStore._explained` returns."""


Synchronous = Literal["normal", "full"]

_WATCH_SECONDS: Final = 0.02
_BEGAN: Final = "agl_began"
"""Key in a connection's info: True while a transaction runs that was begun past SQLAlchemy."""
_CACHE_KIB: Final = 16_384
"""Size of each connection's page cache: large stores write the same pages again and again."""
_LOG_WAIT_MS: Final = 100
_CHECKPOINT_PAGES: Final = 4_000
"""Number of pages of 4 KiB after which the log is moved into the file, with a flush of the disk."""


class SqliteBackend(SqlBackend):
    """SQLite file, created with its folders if it is not there.

    A writing transaction takes the file's write lock when it begins, so that nothing it has read can change under it.

    Args:
        path: The file.
        busy_timeout_seconds: Seconds to wait for another writer.
        synchronous: SQLite's setting of this name.
        read_only: Open an existing file for reading, also in a folder without the right to write.

    Raises:
        LightningStoreError: the folder cannot be made.
    """

    alone = True

    def __init__(
        self, path: Path, busy_timeout_seconds: float, synchronous: Synchronous, *, read_only: bool = False
    ) -> None:
        self._busy_timeout_seconds = busy_timeout_seconds
        options: dict[str, Any] = {"timeout": busy_timeout_seconds, "check_same_thread": False}
        if read_only:
            address = f"{path.resolve().as_uri()}?mode=ro"
            if not _is_readable(address):
                address += "&immutable=1"  # a log file cannot be created beside it, so nobody writes
            engine = create_engine(
                "sqlite://",
                creator=lambda: sqlite3.connect(address, uri=True, **options),
                poolclass=QueuePool,
                pool_size=READERS + 2,
            )
        else:
            _make_private(path)
            url = URL.create("sqlite", database=str(path))
            engine = create_engine(url, connect_args=options, pool_size=READERS + 2)

        def configure(connection: sqlite3.Connection, _: ConnectionPoolEntry) -> None:
            connection.isolation_level = None  # `begin` begins transactions, not the driver
            if read_only:
                return
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute(f"PRAGMA synchronous={synchronous}")
            # Overwrite deleted content: it may be a conversation that its author wanted to be deleted.
            connection.execute("PRAGMA secure_delete=ON")
            connection.execute(f"PRAGMA cache_size=-{_CACHE_KIB}")
            connection.execute(f"PRAGMA wal_autocheckpoint={_CHECKPOINT_PAGES}")

        event.listen(engine, "connect", configure)
        event.listen(engine, "begin", _begin_sqlite)
        super().__init__(str(path), engine)

    def begin(self, connection: Connection) -> None:
        """Begin on the driver's connection: SQLAlchemy's transaction objects cost as much as the transaction."""
        connection.connection.execute("BEGIN IMMEDIATE")
        connection.info[_BEGAN] = True

    def end(self, connection: Connection, *, commit: bool) -> None:
        connection.info[_BEGAN] = False
        if connection.in_transaction():  # SQLAlchemy has joined it for a query
            super().end(connection, commit=commit)
        elif commit:
            connection.connection.commit()
        else:
            connection.connection.rollback()

    def publish(self, connection: Connection, changes: Changes) -> None:
        """Do nothing: other processes poll the file."""

    def foreign_writes(
        self, in_writing_thread: Callable[[Callable[[Connection], int]], int]
    ) -> Generator[bool, None, None]:
        seen: int | None = None
        while True:
            version = in_writing_thread(_data_version)
            yield version != seen
            seen = version
            time.sleep(_WATCH_SECONDS)

    def empty_log(self, connection: Connection) -> bool:
        driver = connection.connection
        driver.execute(f"PRAGMA busy_timeout={_LOG_WAIT_MS}")  # other writers wait meanwhile
        try:
            busy = driver.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
        finally:
            driver.execute(f"PRAGMA busy_timeout={round(1000 * self._busy_timeout_seconds)}")
        return not busy

    def lost(self, connection: Connection) -> bool:
        return False

    def explained(self, error: Exception) -> Exception | None:
        if isinstance(error, OverflowError):
            return ValueError(f"a SQL store keeps whole numbers of 64 bits: {error}")
        cause = error.orig if isinstance(error, DBAPIError) else error
        if not isinstance(cause, sqlite3.Error):
            return None
        reason = str(cause)
        if "locked" in reason or "busy" in reason:
            advice = (
                f"another process kept it locked for more than {self._busy_timeout_seconds:g} s; "
                "end that process, or raise busy_timeout_seconds"
            )
        elif "full" in reason:
            advice = "no space is left to write to (`output_dir`); free some, then go on with `resume`"
        elif "disk I/O" in reason:
            advice = "its disk is full or damaged (`output_dir`); mend that, then go on with `resume`"
        elif "not a database" in reason or "malformed" in reason:
            advice = "it is not a SQLite file, or damaged; choose another store path"
        elif "unable to open" in reason or "readonly" in reason:
            advice = "it cannot be opened for writing; check its permissions, or choose another store path"
        else:
            advice = "SQLite refused"
        kind = StorageFailedError if "full" in reason or "disk I/O" in reason else LightningStoreError
        return kind(f"the store {self.name}: {advice} ({reason})")


def _make_private(path: Path) -> None:
    """Create the folder of a store, and make its files readable for this user alone: they keep conversations and keys.

    SQLite gives its log the rights of the file.
    """
    try:
        make_private_folder(path.parent)
    except OSError as error:
        raise LightningStoreError(f"cannot make the folder of the store {path}: {error}") from error
    logs = [path.with_name(path.name + end) for end in ("-wal", "-shm")]
    for file in (path, *(log for log in logs if log.exists())):
        with contextlib.suppress(OSError):  # the file of another user, or none: SQLite says which
            make_private_file(file)


def _is_readable(address: str) -> bool:
    with contextlib.closing(sqlite3.connect(address, uri=True)) as connection:
        try:
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        except sqlite3.OperationalError:
            return False
    return True


def _begin_sqlite(connection: Connection) -> None:
    if not connection.info.get(_BEGAN):
        writes = connection.get_execution_options().get(WRITES, False)
        connection.connection.cursor().execute("BEGIN IMMEDIATE" if writes else "BEGIN")


def _data_version(connection: Connection) -> int:
    """Return a number that changes when another connection than this one commits."""
    cursor = connection.connection.cursor()
    cursor.execute("PRAGMA data_version")
    return int(cursor.fetchall()[0][0])


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
"""Keep the parameters of failed statements out of the server's log. (Only its owner can set what it logs of others.)"""

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
"""Words of the server's message, and advice, for connection errors, which have no state."""


class PostgresBackend(SqlBackend):
    """PostgreSQL database, in which a store keeps tables named `agl_…` beside others.

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
                isolation_level="AUTOCOMMIT",  # `begin` begins transactions, not the driver
                connect_args={"connect_timeout": _CONNECT_SECONDS, "application_name": "mini-agentic-rl"}
                | dict(url.query),
                pool_size=READERS + 2,
                pool_pre_ping=True,  # the server may have been restarted in the meantime
            )
        except ImportError as error:
            raise MissingPackageError(f"the store {name}", "psycopg", extra="services") from error
        milliseconds = max(1, round(busy_timeout_seconds * 1000))

        def configure(connection: psycopg.Connection[Any], _: ConnectionPoolEntry) -> None:
            # A writer that stops within a transaction must not lock out the others for ever.
            connection.execute(f"SET lock_timeout = {milliseconds}")
            connection.execute(f"SET idle_in_transaction_session_timeout = {milliseconds}")
            connection.execute(_NO_TEXTS_IN_THE_LOG)

        event.listen(engine, "connect", configure)
        event.listen(engine, "begin", _begin_postgres)
        super().__init__(name, engine)

    def publish(self, connection: Connection, changes: Changes) -> None:
        if changes:
            driver = _driver_of(connection)
            self._own_session = driver.info.backend_pid
            driver.execute(f"NOTIFY {_CHANNEL}")

    def foreign_writes(
        self, in_writing_thread: Callable[[Callable[[Connection], int]], int]
    ) -> Generator[bool, None, None]:
        """Also yields True every few seconds, because a connection pooler may swallow notifications."""
        with self.engine.connect() as connection:
            driver = _driver_of(connection)
            connection.detach()  # closed at the end, not returned to the pool
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


def _begin_postgres(connection: Connection) -> None:
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
