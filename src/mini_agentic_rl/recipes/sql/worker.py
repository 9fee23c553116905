"""The process of a database: it receives queries and returns their rows or an error.

    python -m mini_agentic_rl.recipes.sql.worker DATABASE LIMITS IMMUTABLE NICENESS

After it has opened the file, the process may write no file and its memory is limited. `SqlDatabase` kills it when a
query is late.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from ...processes import NotReadyError, confine, lower_priority, serve_answers
from .tool import QueryError, QueryLimits, ReadOnlyConnection, SqlToolError


def answer(connection: ReadOnlyConnection, question: dict[str, Any]) -> dict[str, Any]:
    """Run a query for at most `seconds`, and return its rows or an error, as JSON."""
    try:
        result = connection.run(question["sql"], question["seconds"])
    except QueryError as error:
        return {"error": str(error), "late": connection.was_late}
    except (MemoryError, RecursionError):
        return {"error": "the query is too large; write it in a simpler way"}
    return {
        "columns": result.columns,
        "rows": result.rows,
        "truncated": result.truncated,
        "tables": sorted(result.tables),
    }


def prepare(path: Path, limits: QueryLimits, *, immutable: bool, niceness: int) -> Callable[[Any], dict[str, Any]]:
    """Open the file and confine the process, which then runs at a lower priority by `niceness`.

    Raises:
        NotReadyError: the file cannot be opened.
    """
    try:
        connection = ReadOnlyConnection(path, limits, immutable=immutable)
    except SqlToolError as error:
        raise NotReadyError(str(error)) from error
    answer(connection, {"sql": "SELECT 1", "seconds": limits.timeout_seconds})  # imports happen before the limits
    confine(limits.max_memory_mib)
    lower_priority(niceness)
    return partial(answer, connection)


if __name__ == "__main__":
    path, limits = Path(sys.argv[1]), QueryLimits(**json.loads(sys.argv[2]))
    immutable, niceness = sys.argv[3] == "1", int(sys.argv[4])
    serve_answers(partial(prepare, path, limits, immutable=immutable, niceness=niceness))
