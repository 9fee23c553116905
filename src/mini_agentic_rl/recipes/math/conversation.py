"""The conversation of the math agent, which `datasets` has the words of: its tool at work, and its examples by name."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from ...calculator import CALCULATOR_TOOL, calculate
from ...datasets import SYSTEM_PROMPT, TOOLS, DatasetError, demonstration, load_examples, opening

__all__ = ["SYSTEM_PROMPT", "TOOLS", "calculator", "demonstration", "opening", "use_tool"]

LEVELS: Final = (1, 2)


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


def calculator(
    form: Any, split: str = "train", max_samples: int | None = None, seed: int = 0, levels: Sequence[int] = LEVELS
) -> list[dict[str, Any]]:
    """Return the agent's conversations about arithmetic of some levels, as `load_examples` calls a user's function.

    They are examples of the form `sft` or `rl`, with the agent's `tools`.

    Raises:
        DatasetError: another form, or an unknown split or level.
    """
    if form not in ("sft", "rl"):
        raise DatasetError(f"calculator has the forms sft and rl, not {form}", setting="dataset")
    name = f"arithmetic:{','.join(map(str, levels))}"
    return load_examples(name, form, split=split, max_samples=max_samples, seed=seed)
