"""The queries of one rollout: the tools as the model calls them, and what is kept of them for the reward."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from ...tools.sql import QueryError, QueryResult, SqlDatabase


@dataclass
class Queries:
    """Answers the tools `query` and `schema` over one database; used by one rollout."""

    database: SqlDatabase
    asked: int = 0
    """How many queries were asked."""
    sql: str | None = None
    """The last query that ran."""
    result: QueryResult | None = None
    """What it gave."""

    def query(self, arguments: str) -> str:
        """The rows of a query, or "error: …". `arguments` is the JSON text that the model produced.

        Raises:
            SqlToolError: the database cannot be served.
        """
        self.asked += 1
        sql = _argument(arguments, "sql")
        if sql is None:
            return 'error: give {"sql": "SELECT ..."}'
        try:
            result = self.database.query(sql)
        except QueryError as error:
            return f"error: {error}"
        self.sql, self.result = sql, result
        return result.text()

    def schema(self, arguments: str) -> str:
        """A table's definition and first rows."""
        return self.database.describe(_argument(arguments, "table"))


def _argument(arguments: str, name: str) -> str | None:
    """A text among the arguments of a call; None where they hold none."""
    try:
        values: Any = json.loads(arguments)
    except (ValueError, RecursionError):
        return None
    value = values.get(name) if isinstance(values, dict) else None
    return value if isinstance(value, str) else None
