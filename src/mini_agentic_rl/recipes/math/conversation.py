"""The conversation of the math agent: its prompt, its tool, and how the conversation goes when it goes well.

What is imitated is exactly what the agent then does: its system prompt, one calculator call, its result, the answer.
Nothing of the training framework is needed here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

from ...datasets import ArithmeticDataset, DatasetError, check_split
from ...tools import CALCULATOR_TOOL, calculate

Message: TypeAlias = dict[str, Any]

SYSTEM_PROMPT: Final = (
    "Solve the problem. First think what to compute, then call the calculator with one expression, "
    'then reply "Answer: N" with its result.'
)

TOOLS: Final = [CALCULATOR_TOOL]
"""Tools to send with every call, and to render into a demonstration's prompt."""

DEFAULT_EXAMPLES: Final = 1000
LEVELS: Final = (1, 2)


def opening(task: Mapping[str, Any], system_prompt: str = SYSTEM_PROMPT) -> list[Message]:
    """Return the messages that a conversation on `task` begins with.

    Raises:
        ValueError: the task has no question.
    """
    question = task.get("question")
    if not question:
        raise ValueError('a task of the math agent needs a "question"')
    return [{"role": "system", "content": system_prompt}, {"role": "user", "content": str(question)}]


def use_tool(name: str, arguments: str) -> str:
    """Return the result of a tool call, for the model to read; "error: …" where the call makes no sense.

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
    """Return the OpenAI messages of a rollout as it should be: think, one calculator call, its result, the answer.

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


def calculator(
    form: str, split: str = "train", max_samples: int | None = None, seed: int = 0, levels: Sequence[int] = LEVELS
) -> list[dict[str, Any]]:
    """Return the agent's conversations for `load_examples("mini_agentic_rl.recipes.math:calculator", form)`.

    They are examples of the form `sft` or `rl`, with the agent's `tools`.

    Raises:
        DatasetError: another form, or an unknown split or level.
    """
    if form not in ("sft", "rl"):
        raise DatasetError(f"calculator has the forms sft and rl, not {form}", setting="dataset")
    rows = ArithmeticDataset(check_split(split), DEFAULT_EXAMPLES if max_samples is None else max_samples, seed, levels)
    if form == "sft":
        return [{"messages": demonstration(row), "tools": TOOLS} for row in rows]
    return [{**row, "prompt": opening(row), "ground_truth": row["answer"], "tools": TOOLS} for row in rows]
