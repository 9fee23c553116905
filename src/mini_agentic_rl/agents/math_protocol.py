"""The conversation of the math agent: its prompt, its tool, and how the conversation goes when it goes well."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from ..tools.calculator import CALCULATOR_TOOL, calculate

Message: TypeAlias = dict[str, Any]

SYSTEM_PROMPT: Final = (
    "Solve the problem. First think what to compute, then call the calculator with one expression, "
    'then reply "Answer: N" with its result.'
)

TOOLS: Final = [CALCULATOR_TOOL]
"""What to send as `tools` with every call, and to render into a demonstration's prompt."""


def opening(task: Mapping[str, Any], system_prompt: str = SYSTEM_PROMPT) -> list[Message]:
    """The messages that a conversation on `task` begins with.

    Raises:
        ValueError: the task has no question.
    """
    question = task.get("question")
    if not question:
        raise ValueError('a task of the math agent needs a "question"')
    return [{"role": "system", "content": system_prompt}, {"role": "user", "content": str(question)}]


def use_tool(name: str, arguments: str) -> str:
    """The result of a tool call, for the model to read; "error: …" where the call makes no sense.

    `arguments` is the JSON text that the model produced.
    """
    expected = CALCULATOR_TOOL["function"]["name"]
    if name != expected:
        return f"error: no tool named {name[:40]}; use {expected}"
    try:
        values = json.loads(arguments)
    except (ValueError, RecursionError):
        return "error: arguments are not valid JSON"
    if not isinstance(values, dict) or not isinstance(values.get("expression"), str | int | float):
        return 'error: give {"expression": "..."}'
    return calculate(str(values["expression"]))


def demonstration(row: Mapping[str, Any], *, system_prompt: str = SYSTEM_PROMPT, think: bool = True) -> list[Message]:
    """The OpenAI messages of a rollout as it should be: think, one calculator call, its result, the answer.

    `row` needs `question` and `expression`; with `think`, its `thought` is the content of the message that calls the
    tool. The answer is what the calculator says, so that the trace is true.

    Raises:
        ValueError: the row lacks a question, or the calculator cannot evaluate its expression.
    """
    expression = str(row.get("expression", ""))
    result = calculate(expression)
    if result.startswith("error:"):
        raise ValueError(f"row {row.get('id')!r}: the expression {expression!r} gives {result!r}")
    name = CALCULATOR_TOOL["function"]["name"]
    call = {
        "id": "call_1",
        "type": "function",
        "function": {"name": name, "arguments": json.dumps({"expression": expression})},
    }
    return [
        *opening(row, system_prompt),
        {"role": "assistant", "content": row.get("thought") if think else None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": result},
        {"role": "assistant", "content": f"Answer: {result}"},
    ]
