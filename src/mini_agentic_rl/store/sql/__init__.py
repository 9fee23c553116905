"""The store in an SQL database: SQLite or PostgreSQL, on the same tables and statements."""

from .schema import SCHEMA_VERSION
from .store import SqlLightningStore

__all__ = ["SCHEMA_VERSION", "SqlLightningStore"]
