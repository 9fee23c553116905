"""The store in an SQL database: SQLite or PostgreSQL, on the same tables and statements."""

from .schema import SAME_TABLES_SINCE, SCHEMA_VERSION
from .store import SqlLightningStore

__all__ = ["SAME_TABLES_SINCE", "SCHEMA_VERSION", "SqlLightningStore"]
