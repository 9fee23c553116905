"""Calls as chat completions had them before `tools`: `functions`, `function_call`, results by the function's name.

OpenAI deprecates this form, and agents of its time still send it. An answer holds one call at most.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import BadRequestError
from .base import Json


def has_functions(body: Json) -> bool:
    """Whether a chat request is of the older form."""
    messages = body.get("messages")
    asked = body.get("functions") is not None and body.get("tools") is None
    return asked or (
        isinstance(messages, list)
        and any(isinstance(message, dict) and message.get("function_call") for message in messages)
    )


def as_tools(body: Json) -> Json:
    """A request of the older form in the present one.

    Raises:
        BadRequestError: `functions` is no list.
    """
    chat = {name: value for name, value in body.items() if name not in ("functions", "function_call")}
    functions = body.get("functions")
    if functions is not None:
        if not isinstance(functions, list):
            raise BadRequestError("functions: expected a list", param="functions")
        chat["tools"] = [{"type": "function", "function": function} for function in functions]
        chat["parallel_tool_calls"] = False
        choice = body.get("function_call")
        if choice is not None:
            named = isinstance(choice, Mapping)
            chat["tool_choice"] = {"type": "function", "function": choice} if named else choice
    if isinstance(chat.get("messages"), list):
        chat["messages"] = [_message(message, index) for index, message in enumerate(chat["messages"])]
    return chat


def as_function_call(answer: Json) -> Json:
    """An answer, or a chunk of one, in the older form."""
    choices = answer.get("choices")
    if not isinstance(choices, list):
        return answer
    return {**answer, "choices": [_choice(choice) if isinstance(choice, dict) else choice for choice in choices]}


def _message(message: Any, index: int) -> Any:
    """A message of the history. A result follows its call, whose place is the id of both."""
    if not isinstance(message, dict):
        return message
    if message.get("role") == "function":
        return {**message, "role": "tool", "tool_call_id": f"call_{index - 1}"}
    call = message.get("function_call")
    if not call:
        return message
    kept = {name: value for name, value in message.items() if name != "function_call"}
    return {**kept, "tool_calls": [{"id": f"call_{index}", "type": "function", "function": call}]}


def _choice(choice: Json) -> Json:
    changed = dict(choice)
    for field in ("message", "delta"):
        said = choice.get(field)
        calls = said.get("tool_calls") if isinstance(said, dict) else None
        if isinstance(said, dict) and calls:
            kept = {name: value for name, value in said.items() if name != "tool_calls"}
            changed[field] = {**kept, "function_call": calls[0].get("function")}
    if choice.get("finish_reason") == "tool_calls":
        changed["finish_reason"] = "function_call"
    return changed
