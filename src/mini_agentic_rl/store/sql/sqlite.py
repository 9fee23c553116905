"""SQLite as the database of a store, in WAL mode, where readers and the writer do not block each other."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Final, Literal

from sqlalchemy import URL, Connection, create_engine, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import ConnectionPoolEntry

from ...files import make_private_file, make_private_folder
from ..database_store import READERS
from ..errors import LightningStoreError, StorageFailedError
from ..waiting import Changes
from .backend import WRITES, SqlBackend

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

    Raises:
        LightningStoreError: the folder cannot be made.
    """

    alone = True

    def __init__(self, path: Path, busy_timeout_seconds: float, synchronous: Synchronous) -> None:
        try:
            make_private_folder(path.parent)
        except OSError as error:
            raise LightningStoreError(f"cannot make the folder of the store {path}: {error}") from error
        # It keeps conversations, and the keys that agents need. SQLite gives its log the rights of the file.
        for one in (path, *(log for end in ("-wal", "-shm") if (log := path.with_name(path.name + end)).exists())):
            with contextlib.suppress(OSError):  # another's file, or none: SQLite says which
                make_private_file(one)
        self._busy_timeout_seconds = busy_timeout_seconds
        engine = create_engine(
            URL.create("sqlite", database=str(path)),
            connect_args={"timeout": busy_timeout_seconds, "check_same_thread": False},
            pool_size=READERS + 2,
        )

        def configure(connection: sqlite3.Connection, _: ConnectionPoolEntry) -> None:
            connection.isolation_level = None  # transactions begin where `begin` says, not where the driver guesses
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute(f"PRAGMA synchronous={synchronous}")
            # What is deleted is overwritten: it may be somebody's conversation, deleted because they asked for it.
            connection.execute("PRAGMA secure_delete=ON")
            connection.execute(f"PRAGMA cache_size=-{_CACHE_KIB}")
            connection.execute(f"PRAGMA wal_autocheckpoint={_CHECKPOINT_PAGES}")

        event.listen(engine, "connect", configure)
        event.listen(engine, "begin", _begin)
        super().__init__(str(path), engine)

    def begin(self, connection: Connection) -> None:
        """Begin on the driver's own connection: SQLAlchemy's transaction objects cost as much as the transaction."""
        connection.connection.execute("BEGIN IMMEDIATE")
        connection.info[_BEGAN] = True

    def end(self, connection: Connection, *, commit: bool) -> None:
        connection.info[_BEGAN] = False
        if connection.in_transaction():  # a query has made SQLAlchemy join in
            super().end(connection, commit=commit)
        elif commit:
            connection.connection.commit()
        else:
            connection.connection.rollback()

    def publish(self, connection: Connection, changes: Changes) -> None:
        """Do nothing: other processes look at the file."""

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


def _begin(connection: Connection) -> None:
    if not connection.info.get(_BEGAN):
        writes = connection.get_execution_options().get(WRITES, False)
        connection.connection.cursor().execute("BEGIN IMMEDIATE" if writes else "BEGIN")


def _data_version(connection: Connection) -> int:
    """Return a number that changes when another connection than this one commits."""
    cursor = connection.connection.cursor()
    cursor.execute("PRAGMA data_version")
    return int(cursor.fetchall()[0][0])
