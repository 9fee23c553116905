"""Tools with one text argument: their OpenAI definition, and the execution of a model's calls."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

TextTools: TypeAlias = Mapping[str, tuple[str, Callable[[str], str]]]
"""Tools by name: the name of the argument, and the function that returns the result."""


def text_tool(name: str, description: str, argument: str, kind: str = "string") -> dict[str, Any]:
    """Return the OpenAI definition of a tool with one argument."""
    parameters = {"type": "object", "properties": {argument: {"type": kind}}, "required": [argument]}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


def answer_calls(tools: TextTools, message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the tool messages that answer the calls of an assistant's message."""
    answers = []
    for call in message.get("tool_calls") or ():
        function = call.get("function") or {}
        result = use_text_tool(tools, str(function.get("name")), function.get("arguments"))
        answers.append({"role": "tool", "tool_call_id": str(call.get("id")), "content": result})
    return answers


def use_text_tool(tools: TextTools, name: str, arguments: Any) -> str:
    """Return the result of a tool, or a line that starts with "error: ". `arguments` is the JSON text of a call."""
    if name not in tools:
        return f"error: no tool named {name[:40]}; use {' or '.join(tools)}"
    argument, use = tools[name]
    try:
        values = json.loads(arguments or "{}")
    except (TypeError, ValueError, RecursionError):
        return "error: arguments are not valid JSON"
    value = values.get(argument) if isinstance(values, dict) else None
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return f'error: give {{"{argument}": "..."}}'
    return use(str(value))
