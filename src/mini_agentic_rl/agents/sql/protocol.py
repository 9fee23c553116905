"""The conversation of the SQL agent: its prompt, its tools, and how the conversation goes when it goes well.

All of it is short: a small model pays for every token, and the lines of the schema are enough to write a query.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

from ...datasets.medical import medical_database
from ...tools.sql import Cell
from ...tools.sql.result import cell_text, rows_text
from ...tools.sql.schema import compact_schema
from ...tools.sql.tool import QUERY_TOOL, SQL_TOOLS

Message: TypeAlias = dict[str, Any]

INSTRUCTIONS: Final = (
    'Answer from the SQLite database: call query with one SELECT, then reply "Answer: ..." with its result.'
)

MEDICAL_HINT: Final = "All data are invented, no medical advice. In Chinese questions use the _zh columns."

TOOLS: Final = SQL_TOOLS
"""What to send as `tools` with every call, and to render into a demonstration's prompt."""

HIDDEN_TABLES: Final = ("meta",)
"""Tables that the prompt does not mention."""


def system_prompt(schema: str, hint: str = "") -> str:
    """The first message: what to do, a hint about the database, and its tables, one a line."""
    return "\n".join(part for part in (f"{INSTRUCTIONS} {hint}".strip(), schema) if part)


def medical_prompt() -> str:
    """The first message over the medical database."""
    return system_prompt(compact_schema(medical_database(), HIDDEN_TABLES), MEDICAL_HINT)


def question_of(task: Mapping[str, Any]) -> str:
    """What is asked.

    Raises:
        ValueError: the task has no question.
    """
    question = task.get("question")
    if not question:
        raise ValueError('a task of the SQL agent needs a "question"')
    return str(question)


def answer_line(rows: Sequence[Sequence[Cell]]) -> str:
    """The reply that states a result: "Answer: a; b" for two rows, "Answer: a, b" for two columns."""
    return f"Answer: {'; '.join(', '.join(map(cell_text, row)) for row in rows)}"


def demonstration(row: Mapping[str, Any], prompt: str) -> list[Message]:
    """The OpenAI messages of a rollout as it should be: the gold query, its rows, the answer.

    `row` needs `question`, `sql` and `rows`; `prompt` is the first message, as the agent sends it.

    Raises:
        ValueError: the row lacks one of them.
    """
    if not row.get("sql") or not row.get("rows"):
        raise ValueError(f'row {row.get("id")!r}: a demonstration needs "sql" and the "rows" that it gives')
    arguments = json.dumps({"sql": row["sql"]}, ensure_ascii=False)
    name = QUERY_TOOL["function"]["name"]
    call = {"id": "call_1", "type": "function", "function": {"name": name, "arguments": arguments}}
    return [
        {"role": "system", "content": prompt},
        {"role": "user", "content": question_of(row)},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": rows_text(row["rows"])},
        {"role": "assistant", "content": answer_line(row["rows"])},
    ]
