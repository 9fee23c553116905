"""The reward of using tools well: calls that can be run, of tools that exist, and that were not in vain."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from typing import Any

from .base import Message, Reward, Sample, message_text

_OPENING, _CLOSING = "<tool_call>", "</tool_call>"
_MAX_CALLS = 200
_FAILED = re.compile(r"[\"'{\[( ]{0,8}(?:error|exception|traceback)\b", re.IGNORECASE)


class ToolUseReward(Reward):
    """From 0 to 1: the share of good calls, less for more calls than `max_calls`; 0 without any call.

    A call is good when its tool was offered, its arguments are a JSON object with everything that the tool requires
    and nothing that it does not know, and its result, if there is one, does not begin with "error". Tools are those
    given here, else those of the row's column `tools`; without either any name is taken for a tool. Calls are read from
    the messages' `tool_calls`; in a text from its <tool_call> tags.
    """

    def __init__(
        self,
        *,
        tools: Collection[Mapping[str, Any]] | None = None,
        expected: int = 1,
        max_calls: int | None = None,
        name: str = "tool_use",
    ) -> None:
        """`tools` are OpenAI's definitions. A rollout is to make at least `expected` calls and at most `max_calls`
        (None: any number). With `expected=0` no call is as good as only good calls.

        Raises:
            ValueError: `expected` is below 0 or above `max_calls`.
        """
        super().__init__(name)
        if expected < 0 or (max_calls is not None and max_calls < max(1, expected)):
            raise ValueError(f"0 <= expected <= max_calls does not hold: expected={expected}, max_calls={max_calls}")
        self.tools = tools
        self.expected = expected
        self.max_calls = max_calls

    def score(self, sample: Sample) -> float | None:
        """Return the share of the asked-for formats that the answer has."""
        calls = tool_calls(sample)
        if not calls:
            return 1.0 if self.expected == 0 else 0.0
        offered = _parameters(self.tools if self.tools is not None else sample.columns.get("tools"))
        good = sum(_is_good(call, offered) for call in calls)
        share = good / max(len(calls), self.expected)
        return share if self.max_calls is None else share * min(1.0, self.max_calls / len(calls))


class WrittenCall:
    """One call with its result."""

    def __init__(self, name: Any, arguments: Any, result: str | None = None) -> None:
        self.name = name if isinstance(name, str) else ""
        self.arguments = _object(arguments)
        """None where they are no JSON object."""
        self.result = result


def tool_calls(sample: Sample) -> list[WrittenCall]:
    """Return the calls of a completion, in order, at most `_MAX_CALLS`."""
    if isinstance(sample.completion, str):
        bodies = map(_object, _tagged(sample.completion))
        return [WrittenCall(None, None) if body is None else _call(body, None) for body in bodies]
    results = {
        str(message.get("tool_call_id")): message_text(message)
        for message in sample.messages
        if message.get("role") == "tool"
    }
    calls = [call for message in sample.messages for call in _calls_of(message)]
    return [
        _call(call, results.get(str(call.get("id")))) if isinstance(call, Mapping) else WrittenCall(None, None)
        for call in calls[:_MAX_CALLS]
    ]


def _tagged(text: str) -> list[str]:
    """Return the text between each pair of tags."""
    found: list[str] = []
    start = text.find(_OPENING)
    while start >= 0 and len(found) < _MAX_CALLS:
        start += len(_OPENING)
        end = text.find(_CLOSING, start)
        if end < 0:
            break
        found.append(text[start:end])
        start = text.find(_OPENING, end)
    return found


def _calls_of(message: Message) -> list[Any]:
    calls = message.get("tool_calls")
    return list(calls) if isinstance(calls, list | tuple) else []


def _call(call: Mapping[str, Any], result: str | None) -> WrittenCall:
    function = call.get("function", call)
    if not isinstance(function, Mapping):
        return WrittenCall(None, None, result)
    return WrittenCall(function.get("name"), function.get("arguments", {}), result)


def _object(value: Any) -> dict[str, Any] | None:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return None
    return dict(value) if isinstance(value, Mapping) else None


def _parameters(tools: Any) -> dict[str, Mapping[str, Any]] | None:
    """Return the parameters of each tool by its name; None where nobody says which tools there are."""
    if isinstance(tools, str):
        try:
            tools = json.loads(tools)
        except (ValueError, RecursionError):
            return None
    if not isinstance(tools, list | tuple) or not tools:
        return None
    functions = [tool.get("function", tool) for tool in tools if isinstance(tool, Mapping)]
    return {str(function.get("name")): function.get("parameters") or {} for function in functions if function}


def _is_good(call: WrittenCall, offered: Mapping[str, Mapping[str, Any]] | None) -> bool:
    if not call.name or call.arguments is None or (call.result is not None and _FAILED.match(call.result.lstrip())):
        return False
    if offered is None:
        return True
    if call.name not in offered:
        return False
    schema = offered[call.name]
    known = schema.get("properties") or {}
    required = schema.get("required") or []
    unknown = schema.get("additionalProperties", False) is False and bool(known) and set(call.arguments) - set(known)
    return all(name in call.arguments for name in required) and not unknown
