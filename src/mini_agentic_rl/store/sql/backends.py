"""The SQLite file or the PostgreSQL database under a `SqlLightningStore`: connections, transactions, errors.

The drivers are called directly: a layer above them costs as much as a transaction in SQLite.
"""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any, Final, Literal, TypeVar
from urllib.parse import quote

from ...errors import MissingPackageError
from ...files import FILE_MODE, make_private_folder
from ...redaction import shown_address
from ..base import LightningStoreError, StorageFailedError, StoreUnreachableError
from ..database_store import Database
from ..ledger import Changes
from ..tables import Tables
from .schema import SCHEMA_VERSION, prepare, version_of
from .session import Dialect, Session
from .tables import SqlTables

T = TypeVar("T")


class SqlDatabase(Database):
    """The SQLite file or the PostgreSQL database of a store. Thread-safe.

    One connection writes, others read.

    Args:
        name: Name of the database in messages.
        dialect: Its SQL.
    """

    begin_write: str
    """Begins a transaction that excludes all other writers."""
    begin_read: str
    """Begins a transaction that reads one state."""

    def __init__(self, name: str, dialect: Dialect) -> None:
        self.name = name
        self._dialect = dialect
        self._writing = threading.Lock()
        """Held while the writing connection is in use."""
        self._writer: Any = None
        self._readers: list[Any] = []
        """Connections that nobody reads with now."""

    def open(self) -> None:
        """Create the tables, or bring them to the newest version."""
        with self._transaction() as connection:
            prepare(Session(connection, self._dialect), self.name)

    def transaction(self, work: Callable[[Tables], Changes]) -> None:
        with self._transaction() as connection:
            work(SqlTables(Session(connection, self._dialect)))

    def query(self, work: Callable[[Tables], T]) -> T:
        return self._read(lambda session: work(SqlTables(session)))

    def empty_log(self) -> bool:
        """Remove deleted content from the write-ahead log, between transactions; False while others read the log."""
        return True

    def close(self) -> None:
        with self._writing:
            connections, self._readers = self._readers, []
            for connection in (self._writer, *connections):
                if connection is not None:
                    connection.close()
            self._writer = None

    @abstractmethod
    def _connect(self) -> Any:
        """Return a new connection, which leaves the begin of transactions to statements."""

    def _lost(self, connection: Any) -> bool:
        """Return True if a connection cannot be used any more."""
        return False

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[Any]:
        """Yield the connection that writes, in a transaction that is committed at the end of the block."""
        with self._writing:
            self._writer = connection = self._begun(self._writer, self.begin_write)
            try:
                yield connection
                connection.commit()
            except BaseException:
                if not self._lost(connection):
                    connection.rollback()
                raise

    def _read(self, work: Callable[[Session], T]) -> T:
        try:
            idle = self._readers.pop()
        except IndexError:  # another thread may have taken the last one
            idle = None
        connection = self._begun(idle, self.begin_read)
        try:
            return work(Session(connection, self._dialect))
        finally:
            if not self._lost(connection):
                connection.rollback()
                self._readers.append(connection)

    def _begun(self, connection: Any, begin: str) -> Any:
        """Return the connection in a transaction; a new connection if there is none, or it has been lost meanwhile."""
        if connection is not None:
            try:
                connection.execute(begin)
                return connection
            except Exception:  # the drivers share no error class; only a lost connection is replaced
                if not self._lost(connection):
                    connection.rollback()
                    raise
                connection.close()
        connection = self._connect()
        try:
            connection.execute(begin)
        except Exception:  # nothing else refers to the new connection yet
            connection.close()
            raise
        return connection


Synchronous = Literal["normal", "full"]

_WATCH_SECONDS: Final = 0.02
_LONGEST_WATCH_SECONDS: Final = 0.1
_WATCH_GROWTH: Final = 1.05
_CACHE_KIB: Final = 16_384
"""Size of each connection's page cache: large stores write the same pages again and again."""
_LOG_WAIT_MS: Final = 100
_CHECKPOINT_PAGES: Final = 4_000
"""Number of pages of 4 KiB after which the log is moved into the file, with a flush of the disk."""


class SqliteDatabase(SqlDatabase):
    """SQLite file, created with its folders if it is not there.

    A writing transaction takes the file's write lock when it begins, so that nothing it has read can change under it.

    Args:
        path: The file.
        busy_timeout_seconds: Seconds to wait for another writer.
        synchronous: SQLite's setting of this name.
        read_only: Open an existing file for reading, also in a folder without the right to write.

    Raises:
        LightningStoreError: the path is not that of a file, or the folder cannot be made.
    """

    begin_write = "BEGIN IMMEDIATE"
    begin_read = "BEGIN"

    def __init__(
        self, path: Path, busy_timeout_seconds: float, synchronous: Synchronous, *, read_only: bool = False
    ) -> None:
        super().__init__(str(path), "sqlite")
        if path.exists() and not path.is_file():  # of a pipe, SQLite would say that the disk is damaged
            raise LightningStoreError(f"the store {path}: it is not a file; choose another store path")
        self._path = path
        self._busy_timeout_seconds = busy_timeout_seconds
        self._synchronous = synchronous
        self._read_only = read_only
        self._address = f"{path.absolute().as_uri()}?mode={'ro' if read_only else 'rwc'}"
        if read_only and not _is_readable(self._address):
            self._address += "&immutable=1"  # a log file cannot be created beside it, so nobody writes
        if not read_only:
            _make_file(path)

    def open(self) -> None:
        if not self._read_only:
            super().open()
            _make_private(self._path)  # now that it is known to be a store
        elif self._read(lambda session: version_of(session, self.name)) < SCHEMA_VERSION:
            writable = SqliteDatabase(self._path, self._busy_timeout_seconds, self._synchronous)
            with contextlib.closing(writable):
                writable.open()

    def foreign_writes(self) -> Generator[bool, None, None]:
        """Polls more rarely the longer nobody has written: a caller who has waited long can wait a little longer.

        The writing connection is asked, whose commits do not count as those of others.
        """
        seen, pause = None, _WATCH_SECONDS
        while True:
            with self._writing:
                if self._writer is None:
                    self._writer = self._connect()
                (version,) = self._writer.execute("PRAGMA data_version").fetchone()
            pause = _WATCH_SECONDS if version != seen else min(_WATCH_GROWTH * pause, _LONGEST_WATCH_SECONDS)
            yield version != seen
            seen = version
            time.sleep(pause)

    def empty_log(self) -> bool:
        with self._writing:
            if self._writer is None:  # closed meanwhile
                return False
            self._writer.execute(f"PRAGMA busy_timeout={_LOG_WAIT_MS}")  # other writers wait meanwhile
            try:
                (busy, *_) = self._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            finally:
                self._writer.execute(f"PRAGMA busy_timeout={round(1000 * self._busy_timeout_seconds)}")
        return not busy

    def explained(self, error: Exception) -> Exception | None:
        if isinstance(error, OverflowError):
            return ValueError(f"a SQL store keeps whole numbers of 64 bits: {error}")
        if not isinstance(error, sqlite3.Error):
            return None
        reason = str(error)
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

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self._address,
            uri=True,
            timeout=self._busy_timeout_seconds,
            check_same_thread=False,
            isolation_level=None,  # statements begin transactions, not the driver
        )
        if not self._read_only:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute(f"PRAGMA synchronous={self._synchronous}")
            # Overwrite deleted content: it may be a conversation that its author wanted to be deleted.
            connection.execute("PRAGMA secure_delete=ON")
            connection.execute(f"PRAGMA cache_size=-{_CACHE_KIB}")
            connection.execute(f"PRAGMA wal_autocheckpoint={_CHECKPOINT_PAGES}")
        return connection


def _make_file(path: Path) -> None:
    """Create the folder and the file of a store, where they are missing, for this user alone: it keeps conversations
    and keys."""
    try:
        make_private_folder(path.parent)
    except OSError as error:
        raise LightningStoreError(f"cannot make the folder of the store {path}: {error}") from error
    with contextlib.suppress(OSError):  # there is a file, or SQLite says why there can be none
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, FILE_MODE))


def _make_private(path: Path) -> None:
    """Make the files of a store readable for this user alone. SQLite gives its log the rights of the file.

    It does not open them: closing a file of an open database drops the locks of this process on it (POSIX).
    """
    if os.name != "posix":  # Windows has other permissions
        return
    for file in (path, *(path.with_name(path.name + end) for end in ("-wal", "-shm"))):
        with contextlib.suppress(OSError):
            if file.stat().st_uid == os.geteuid():
                file.chmod(FILE_MODE)


def _is_readable(address: str) -> bool:
    with contextlib.closing(sqlite3.connect(address, uri=True)) as connection:
        try:
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        except sqlite3.DatabaseError:  # also a damaged file, whose error comes when the store is opened
            return False
    return True


_LOCK: Final = 0x61676C  # a number that other programs in the database are not likely to lock
_CHANNEL: Final = "agl_store"
_CONNECT_SECONDS: Final = 10
_USER_AND_PASSWORD: Final = re.compile(r"(?<=://)[^:/?]*(?::[^?]*)?(?=@)")
_LISTEN_SECONDS: Final = 0.1
_LOOK_SECONDS: Final = 5.0

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


class PostgresDatabase(SqlDatabase):
    """PostgreSQL database, in which a store keeps tables named `agl_…` beside others.

    Raises:
        LightningStoreError: the driver is not installed.
        ValueError: the URL is malformed.
    """

    begin_write = f"BEGIN ISOLATION LEVEL READ COMMITTED; SELECT pg_advisory_xact_lock({_LOCK})"
    begin_read = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"

    def __init__(self, url: str, busy_timeout_seconds: float) -> None:
        super().__init__(shown_address(url).partition("?")[0], "postgresql")
        self._busy_timeout_seconds = busy_timeout_seconds
        self._writer_pid = 0
        try:
            import psycopg
        except ImportError as error:
            raise MissingPackageError(f"the store {self.name}", "psycopg", extra="services") from error
        self._driver = psycopg
        # libpq ends a password at the first / or @, and would show the rest as the name of a host or a port.
        url = _USER_AND_PASSWORD.sub(lambda user_and_password: quote(user_and_password[0], safe=":%"), url)
        defaults: dict[str, Any] = {"connect_timeout": _CONNECT_SECONDS, "application_name": "mini-agentic-rl"}
        try:
            self._options = defaults | psycopg.conninfo.conninfo_to_dict(url)
            malformed = not re.fullmatch(r"[\d,]*", self._options.get("port", ""))
        except psycopg.Error:  # the message may quote the password
            malformed = True
        if malformed:
            raise ValueError(
                "store URL postgresql://…: not a URL, or an option after ? is unknown; write special characters of a "
                "user name or a password as %XX"
            )

    def transaction(self, work: Callable[[Tables], Changes]) -> None:
        """Run a transaction, and notify the callers in other processes who wait for its changes."""
        with self._transaction() as connection:
            if work(SqlTables(Session(connection, self._dialect))):
                self._writer_pid = connection.info.backend_pid
                connection.execute(f"NOTIFY {_CHANNEL}")

    def foreign_writes(self) -> Generator[bool, None, None]:
        """Also yields True every few seconds, because a connection pooler may swallow notifications."""
        with contextlib.closing(self._connect()) as connection:
            connection.execute(f"LISTEN {_CHANNEL}")
            yield True
            looked_at = time.monotonic()
            while True:
                senders = [notice.pid for notice in connection.notifies(timeout=_LISTEN_SECONDS, stop_after=1)]
                look = time.monotonic() - looked_at > _LOOK_SECONDS
                if look:
                    looked_at = time.monotonic()
                yield look or any(sender != self._writer_pid for sender in senders)

    def explained(self, error: Exception) -> Exception | None:
        if not isinstance(error, self._driver.Error):
            return None
        reason = str(error).strip().replace("\n", " ")
        if isinstance(error, self._driver.DataError) or getattr(error, "sqlstate", None) == _TOO_LONG:
            return ValueError(f"PostgreSQL cannot keep this: {reason}")
        advice = self._advice(error, reason)
        kind = StoreUnreachableError if advice is _AWAY else LightningStoreError
        if getattr(error, "sqlstate", None) in _FAILED:
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

    def _connect(self) -> Any:
        connection = self._driver.connect(**self._options, autocommit=True)  # statements begin transactions
        milliseconds = max(1, round(self._busy_timeout_seconds * 1000))
        # A writer that stops within a transaction must not lock out the others for ever.
        connection.execute(f"SET lock_timeout = {milliseconds}")
        connection.execute(f"SET idle_in_transaction_session_timeout = {milliseconds}")
        connection.execute(_NO_TEXTS_IN_THE_LOG)
        return connection

    def _lost(self, connection: Any) -> bool:
        return bool(connection.closed)
