"""The store in a SQL database: SQLite or PostgreSQL, on the same tables and statements."""

from .store import SqlLightningStore

__all__ = ["SqlLightningStore"]
