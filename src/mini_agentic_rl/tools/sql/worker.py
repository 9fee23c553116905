"""The fourth gate: the process of a database. Reads one query a line (JSON), writes its rows or its refusal a line.

    python -m mini_agentic_rl.tools.sql.worker DATABASE LIMITS IMMUTABLE

Once the file is open, the process may write no file and take only so much memory; `database` kills it when it is late.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from .connection import ReadOnlyConnection
from .limits import QueryLimits
from .result import QueryError, SqlToolError


def answer(connection: ReadOnlyConnection, sql: str) -> dict[str, Any]:
    """What comes of a query, as JSON."""
    try:
        found = connection.run(sql)
    except QueryError as error:
        return {"error": str(error)}
    except (MemoryError, RecursionError):
        return {"error": "the query is too large; write it in a simpler way"}
    return {
        "columns": found.columns,
        "rows": found.rows,
        "truncated": found.truncated,
        "tables": sorted(found.tables),
    }


def confine(limits: QueryLimits) -> None:
    """From here on this process writes no file and, on Linux, takes at most so much more memory."""
    if sys.platform == "win32":
        return
    import resource

    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        import psutil

        allowed = psutil.Process().memory_info().vms + (limits.max_memory_mib << 20)
        resource.setrlimit(resource.RLIMIT_AS, (allowed, allowed))


def serve(path: Path, limits: QueryLimits, *, immutable: bool) -> None:
    """Answer until standard input ends."""
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    try:
        connection = ReadOnlyConnection(path, limits, immutable=immutable)
    except SqlToolError as error:
        replies.write(json.dumps({"error": str(error)}) + "\n")
        replies.flush()
        return
    answer(connection, "SELECT 1")  # what is imported on first use is imported now
    confine(limits)
    replies.write(json.dumps({"ready": True}) + "\n")
    replies.flush()
    for line in sys.stdin:
        replies.write(json.dumps(answer(connection, json.loads(line))) + "\n")
        replies.flush()


if __name__ == "__main__":
    serve(Path(sys.argv[1]), QueryLimits.model_validate_json(sys.argv[2]), immutable=sys.argv[3] == "1")
