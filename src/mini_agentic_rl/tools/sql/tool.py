"""What models are told of a database, and how their calls are answered."""

from __future__ import annotations

from typing import Any, Final

QUERY_TOOL: Final[dict[str, Any]] = {
    "type": "function",
    "function": {
        "name": "query",
        "description": "Run one SQLite SELECT.",
        "parameters": {
            "type": "object",
            "properties": {"sql": {"type": "string"}},
            "required": ["sql"],
        },
    },
}

SCHEMA_TOOL: Final[dict[str, Any]] = {
    "type": "function",
    "function": {
        "name": "schema",
        "description": "Show a table's columns and first rows.",
        "parameters": {
            "type": "object",
            "properties": {"table": {"type": "string"}},
            "required": ["table"],
        },
    },
}

SQL_TOOLS: Final = [QUERY_TOOL, SCHEMA_TOOL]
"""What to send as `tools` with every call."""
