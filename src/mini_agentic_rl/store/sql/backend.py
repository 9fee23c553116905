"""Differences between kinds of SQL databases: connecting, excluding other writers, explaining errors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from typing import Final

from sqlalchemy import Connection, Engine

from ..waiting import Changes

WRITES: Final = "agl_writes"
"""Execution option of the connection that writes; its transactions begin by excluding other writers."""


class SqlBackend(ABC):
    """The SQLite file or the PostgreSQL database under a `SqlLightningStore`.

    Args:
        name: Name of the database in messages.
        engine: Its connections. Those that write have the execution option `WRITES`; the transactions of all others
            only read, and see one state.
    """

    alone: bool
    """True if the database belongs to one store and nobody else."""

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
        """Make the end of this writing transaction wake the callers that wait in other processes."""

    @abstractmethod
    def foreign_writes(
        self, in_writing_thread: Callable[[Callable[[Connection], int]], int]
    ) -> Generator[bool, None, None]:
        """Yield as `DatabaseStore._foreign_writes` does.

        `in_writing_thread` lends the writing connection between transactions.
        """

    def empty_log(self, connection: Connection) -> bool:
        """Drop what a log still holds of what was deleted, between two transactions; False where another reads it now.

        A database that keeps its log for itself has nothing to do here.
        """
        return True

    @abstractmethod
    def lost(self, connection: Connection) -> bool:
        """Return True if a connection cannot be used any more."""

    @abstractmethod
    def explained(self, error: Exception) -> Exception | None:
        """Return what `DatabaseStore._explained` returns."""
