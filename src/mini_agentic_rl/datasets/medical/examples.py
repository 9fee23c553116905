"""Questions about the medical database as training examples: the SQL agent's conversations, word for word."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from functools import cache
from typing import Final

from ...sql_conversation import SQL_TOOLS, demonstration, opening, schema_text, system_prompt
from ..forms import Example, Form
from ..rows import DatasetError, Row
from .database import connect_in_memory

HINT: Final = "All data are invented, no medical advice. In Chinese questions use the _zh columns."
"""What the agent is told of the database."""
HIDDEN_TABLES: Final = ("meta",)
"""Tables that the prompt does not mention."""


@cache
def medical_prompt() -> str:
    """The first message of the SQL agent over the medical database."""
    with closing(connect_in_memory()) as connection:
        return system_prompt(schema_text(connection, HIDDEN_TABLES), HINT)


def medical_examples(rows: Sequence[Row], form: Form) -> list[Example]:
    """One example a row, with the agent's `tools`: `sft`, the gold query as the call of a tool, its rows, the answer;
    `rl`, the prompt, and the row with its gold query `sql`.

    Raises:
        DatasetError: another form.
    """
    if form not in ("sft", "rl"):
        raise DatasetError(f"--dataset medical has the forms sft and rl, not {form}")
    prompt = medical_prompt()
    if form == "sft":
        return [{"messages": demonstration(row, prompt), "tools": SQL_TOOLS} for row in rows]
    return [{**row, "prompt": opening(row, prompt), "ground_truth": row["answer"], "tools": SQL_TOOLS} for row in rows]
