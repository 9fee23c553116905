"""The store in an SQL database: it outlives its process, and several processes may use it at once.

A SQLite file, on a local disk, is for the processes of one computer: acknowledged changes survive the process, and with
`synchronous="full"` a power cut. A PostgreSQL database is for several computers: its settings decide what survives.

Every change is made in a transaction that excludes all other writers, so each rollout is claimed once.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Generator, Sequence
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from sqlalchemy import URL, Connection
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from ..database_store import DatabaseStore
from ..ledger import Changes
from ..tables import Tables
from .backends import WRITES, PostgresBackend, SqlBackend, SqliteBackend, Synchronous
from .schema import SCHEMA_VERSION, prepare, version_of
from .tables import SqlTables

T = TypeVar("T")

logger = logging.getLogger(__name__)

_LOG_TRIES: Final = 20
_LOG_PAUSE_SECONDS: Final = 0.2
_POSTGRES: Final = ("postgresql", "postgres")


class SqlLightningStore(DatabaseStore):
    """Store in an SQL database. Pickled to another process, it opens the same database there.

    Args:
        path_or_url: A SQLite file, or `sqlite:///` and the file, which is created with its folders if it is missing; or
            an existing database `postgresql://user:password@host:port/database`.
        scan_debounce_seconds: Attempts are checked against their limits at most this often by ordinary calls.
            Waiting calls check whenever a limit is reached.
        busy_timeout_seconds: Seconds that a call waits for another process to finish writing.
        synchronous: For a SQLite file. `normal`: acknowledged changes survive the process. `full`: they survive a power
            cut too, with a disk flush for every transaction.
        read_only: For an existing SQLite file: change no record, and check no attempt against its limits. A file of an
            older version is upgraded first.

    Raises:
        LightningStoreError: the database cannot be used; the message says why. Any later call may raise it as well.
        ValueError: the URL is not one of a SQLite file or a PostgreSQL database.
    """

    def __init__(
        self,
        path_or_url: str | Path,
        *,
        scan_debounce_seconds: float = 0.5,
        busy_timeout_seconds: float = 30.0,
        synchronous: Synchronous = "normal",
        read_only: bool = False,
    ) -> None:
        target = _path_or_url(path_or_url)
        self.path = target if isinstance(target, Path) else None
        """Path of the file; None if the store is in a PostgreSQL database."""
        self._backend: SqlBackend
        if isinstance(target, Path):
            self._backend = SqliteBackend(target, busy_timeout_seconds, synchronous, read_only=read_only)
        else:
            if read_only:
                raise ValueError("read_only=True: only a SQLite file is opened read-only")
            self._backend = PostgresBackend(target, busy_timeout_seconds)
        arguments = {
            "path_or_url": target if isinstance(target, Path) else target.render_as_string(hide_password=False),
            "scan_debounce_seconds": scan_debounce_seconds,
            "busy_timeout_seconds": busy_timeout_seconds,
            "synchronous": synchronous,
            "read_only": read_only,
        }
        super().__init__(
            self._backend.name,
            scan_debounce_seconds=math.inf if read_only else scan_debounce_seconds,
            arguments=arguments,
        )
        self._connection: Connection | None = None
        if read_only:
            self._in_writing_thread(self._upgrade)
        else:
            create_tables = partial(prepare, name=self._name, alone=self._backend.alone)
            self._in_writing_thread(partial(self._in_transaction, create_tables))

    async def delete_rollouts(self, rollout_ids: Sequence[str]) -> Sequence[str]:
        """Delete rollouts as `LightningStore.delete_rollouts` does, also from the write-ahead log of SQLite.

        While other processes read the log, their content stays in it until the next deletion; this is logged.
        """
        deleted = await super().delete_rollouts(rollout_ids)
        if deleted:
            for _ in range(_LOG_TRIES):
                if await asyncio.to_thread(self._in_writing_thread, lambda: self._backend.empty_log(self._writer())):
                    return deleted
                await asyncio.sleep(_LOG_PAUSE_SECONDS)
            logger.warning("%s: its log still holds what was deleted; it is written over in time", self._name)
        return deleted

    def _transaction(self, work: Callable[[Tables], Changes]) -> None:
        def publishing(connection: Connection) -> None:
            self._backend.publish(connection, work(SqlTables(connection)))

        self._in_transaction(publishing)

    def _query(self, work: Callable[[Tables], T]) -> T:
        with self._backend.engine.connect() as connection, connection.begin():
            return work(SqlTables(connection))

    def _foreign_writes(self) -> Generator[bool, None, None]:
        def in_writing_thread(look: Callable[[Connection], int]) -> int:
            return self._in_writing_thread(lambda: look(self._writer()))

        return self._backend.foreign_writes(in_writing_thread)

    def _explained(self, error: Exception) -> Exception | None:
        return self._backend.explained(error)

    def _release(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._backend.engine.dispose()

    def _upgrade(self) -> None:
        """Bring a file that is opened read-only to the newest version."""
        with self._backend.engine.connect() as connection, connection.begin():
            version = version_of(connection, self._name)
        if version < SCHEMA_VERSION and self.path is not None:
            SqlLightningStore(self.path)._close()

    def _in_transaction(self, work: Callable[[Connection], None]) -> None:
        connection = self._begun()
        try:
            work(connection)
            self._backend.end(connection, commit=True)
        except BaseException:
            if not self._gave_up_writer():
                self._backend.end(connection, commit=False)
            raise

    def _begun(self) -> Connection:
        """Return the connection that writes, in a transaction; a new connection if the one before has died."""
        had_one = self._connection is not None
        try:
            self._backend.begin(self._writer())
        except Exception:
            if not self._gave_up_writer() or not had_one:
                raise
            self._backend.begin(self._writer())
        return self._writer()

    def _writer(self) -> Connection:
        if self._connection is None:
            self._connection = self._backend.engine.connect().execution_options(**{WRITES: True})
        return self._connection

    def _gave_up_writer(self) -> bool:
        """Drop the writing connection if it is lost. Return True if there is none now."""
        connection = self._connection
        if connection is not None and self._backend.lost(connection):
            self._connection = None
            connection.invalidate()
            connection.close()
        return self._connection is None


def _path_or_url(path_or_url: str | Path) -> Path | URL:
    file = str(path_or_url)
    if "://" in file:
        try:
            url = make_url(file)
        except (ArgumentError, ValueError):  # the message may quote the password
            raise ValueError(
                f"store URL {file.partition('://')[0]}://…: not a URL; write special characters of a user name or a "
                "password as %XX"
            ) from None
        kind = url.drivername.partition("+")[0]
        if kind in _POSTGRES:
            return url.set(drivername="postgresql")
        if kind != "sqlite":
            raise ValueError(f"store URL {kind}://…: expected a path, sqlite:///path or postgresql://…")
        file = url.database or ":memory:"
    if file == ":memory:":
        raise ValueError("a SqlLightningStore needs a file; use InMemoryLightningStore to keep nothing on disk")
    return Path(file).absolute()
