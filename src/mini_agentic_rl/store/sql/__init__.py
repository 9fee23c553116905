"""The store in an SQL database: it outlives its process, and several processes may use it at once.

A SQLite file, on a local disk, is for the processes of one computer: acknowledged changes survive the process, and with
`synchronous="full"` a power cut. A PostgreSQL database is for several computers: its settings decide what survives.

Every change is made in a transaction that excludes all other writers, so each rollout is claimed once.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ..database_store import DatabaseStore
from .backends import PostgresDatabase, SqlDatabase, SqliteDatabase, Synchronous

__all__ = ["SqlLightningStore"]

logger = logging.getLogger(__name__)

_LOG_TRIES: Final = 20
_LOG_PAUSE_SECONDS: Final = 0.2


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
        self.path: Path | None = None
        """Path of the file; None if the store is in a PostgreSQL database."""
        scheme, separator, rest = str(path_or_url).partition("://")
        kind = scheme.partition("+")[0] if separator else ""
        self._database: SqlDatabase
        if kind in ("postgresql", "postgres"):
            if read_only:
                raise ValueError("read_only=True: only a SQLite file is opened read-only")
            self._database = PostgresDatabase(f"postgresql://{rest}", busy_timeout_seconds)
        else:
            if kind not in ("", "sqlite") or (separator and not kind):
                raise ValueError(f"store URL {kind}://…: expected a path, sqlite:///path or postgresql://…")
            # between a host, which is refused, and options, which have no meaning here
            file = rest.partition("?")[0].partition("/")[2] if separator else str(path_or_url)
            if file in ("", ":memory:"):
                raise ValueError("a SqlLightningStore needs a file; use InMemoryLightningStore to keep nothing on disk")
            self.path = Path(file).absolute()
            self._database = SqliteDatabase(self.path, busy_timeout_seconds, synchronous, read_only=read_only)
        super().__init__(
            self._database,
            self._database.name,
            scan_debounce_seconds=math.inf if read_only else scan_debounce_seconds,
            arguments={
                "path_or_url": self.path or path_or_url,
                "scan_debounce_seconds": scan_debounce_seconds,
                "busy_timeout_seconds": busy_timeout_seconds,
                "synchronous": synchronous,
                "read_only": read_only,
            },
        )

    async def delete_rollouts(self, rollout_ids: Sequence[str]) -> Sequence[str]:
        """Delete rollouts as `LightningStore.delete_rollouts` does, also from the write-ahead log of SQLite.

        While other processes read the log, their content stays in it until the next deletion; this is logged.
        """
        deleted = await super().delete_rollouts(rollout_ids)
        if deleted:
            for _ in range(_LOG_TRIES):
                self._check_open()
                if await asyncio.to_thread(self._explaining, self._database.empty_log):
                    return deleted
                await asyncio.sleep(_LOG_PAUSE_SECONDS)
            logger.warning("%s: its log still holds what was deleted; it is written over in time", self._name)
        return deleted
