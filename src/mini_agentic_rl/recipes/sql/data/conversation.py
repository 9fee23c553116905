"""The conversation of a model with a SQL database: prompt, tools, results, and how it goes when it goes well.

The agent, its tools and the examples to imitate take their words from here, so that what is imitated is token by token
what the agent then sees. All of it is short: a small model pays for every token, and the lines of the schema are enough
to write a query.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, TypeAlias

Cell: TypeAlias = int | float | str | None
"""A value as models see it. What SQLite holds as bytes is a text that tells how many."""
Message: TypeAlias = dict[str, Any]


def _tool(name: str, description: str, argument: str) -> dict[str, Any]:
    """Return an OpenAI function that takes one text."""
    parameters = {"type": "object", "properties": {argument: {"type": "string"}}, "required": [argument]}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


QUERY_TOOL: Final = _tool("query", "Run one SQLite SELECT.", "sql")
SCHEMA_TOOL: Final = _tool("schema", "Show a table's columns and first rows.", "table")

SQL_TOOLS: Final = [QUERY_TOOL, SCHEMA_TOOL]
"""Tools to send with every call, and to render into the prompt of an example."""

INSTRUCTIONS: Final = (
    'Answer from the SQLite database: call query with one SELECT, then reply "Answer: ..." with its result.'
)


def system_prompt(schema: str, hint: str = "") -> str:
    """Return the system prompt: the task, a hint about the database, and its tables, one a line."""
    return "\n".join(part for part in (f"{INSTRUCTIONS} {hint}".strip(), schema) if part)


def schema_text(connection: sqlite3.Connection, leave_out: Collection[str] = ()) -> str:
    """Return one line a table, as in `drug(id,name,price)`."""
    tables = [table for table in table_names(connection) if table not in leave_out]
    return "\n".join(f"{table}({','.join(_columns(connection, table))})" for table in tables)


def table_names(connection: sqlite3.Connection) -> list[str]:
    """Tables and views, in the order of their making; SQLite's own are left out."""
    found = connection.execute(
        "SELECT name FROM sqlite_master WHERE type IN ('table', 'view') AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' "
        "ORDER BY rowid"
    )
    return [str(name) for (name,) in found]


def quoted(name: str) -> str:
    """Return a name as SQLite reads it."""
    return '"' + name.replace('"', '""') + '"'


def opening(task: Mapping[str, Any], prompt: str) -> list[Message]:
    """Return the messages that a rollout begins with; `prompt` is the first one.

    Raises:
        ValueError: the task has no question.
    """
    return [{"role": "system", "content": prompt}, {"role": "user", "content": question_of(task)}]


def question_of(task: Mapping[str, Any]) -> str:
    """Return the question of a task.

    Raises:
        ValueError: the task has no question.
    """
    question = task.get("question")
    if not question:
        raise ValueError('a task of the SQL agent needs a "question"')
    return str(question)


def demonstration(task: Mapping[str, Any], prompt: str) -> list[Message]:
    """Return the messages of a rollout as it should be: the gold query, its rows, the answer.

    `task` needs `question`, `sql` and `rows`; `prompt` is the first message, as the agent sends it.

    Raises:
        ValueError: the task lacks one of them.
    """
    if not task.get("sql") or not task.get("rows"):
        raise ValueError(f'row {task.get("id")!r}: a demonstration needs "sql" and the "rows" that it gives')
    arguments = json.dumps({"sql": task["sql"]}, ensure_ascii=False)
    name = QUERY_TOOL["function"]["name"]
    call = {"id": "call_1", "type": "function", "function": {"name": name, "arguments": arguments}}
    return [
        *opening(task, prompt),
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": rows_text(task["rows"])},
        {"role": "assistant", "content": answer_line(task["rows"])},
    ]


def rows_text(rows: Sequence[Sequence[Cell]]) -> str:
    """Return one row a line, its values with " | " between them."""
    return "\n".join(" | ".join(map(cell_text, row)) for row in rows)


def answer_line(rows: Sequence[Sequence[Cell]]) -> str:
    """Return the reply that states a result: "Answer: a; b" for two rows, "Answer: a, b" for two columns."""
    return f"Answer: {'; '.join(', '.join(map(cell_text, row)) for row in rows)}"


def cell_text(cell: Cell) -> str:
    """Return a value as it is shown: NULL, a number with at most ten digits, or the text itself."""
    if cell is None:
        return "NULL"
    return f"{cell:.10g}" if isinstance(cell, float) else str(cell)


def _columns(connection: sqlite3.Connection, table: str) -> list[str]:
    return [str(row[1]) for row in connection.execute(f"PRAGMA table_info({quoted(table)})")]
