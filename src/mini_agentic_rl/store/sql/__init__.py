"""The store in an SQL database: SQLite or PostgreSQL, on the same tables and statements."""

from .store import SqlLightningStore

__all__ = ["SqlLightningStore"]
