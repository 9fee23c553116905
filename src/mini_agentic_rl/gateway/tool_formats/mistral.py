"""The formats of Mistral's models, which begin with the special token `[TOOL_CALLS]`.

A list of objects, up to the third tokenizer version:

    [TOOL_CALLS][{"name": "calculate", "arguments": {"expression": "2+2"}}]

and a name before the arguments since, for each call anew (`[ARGS]` may be missing, `[CALL_ID]...` may stand before it):

    [TOOL_CALLS]calculate[ARGS]{"expression": "2+2"}
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from .base import CallShape, Scanner, TextOrCall, Tool, json_text, tools_section
from .json_calls import JsonValue, calls_of, make_call, read_json
from .scanner import CallScanner, Opening, Step

_TAG = "[TOOL_CALLS]"
_ARGS = "[ARGS]"
_CALL_ID = "[CALL_ID]"
_LONGEST_NAME = 256
_NAMED = re.compile(r"\s*([^\s{}\[\]\"]+)\s*(?:\[CALL_ID\]\s*[^\s{}\[\]\"]*\s*)?(?:\[ARGS\])?\s*(\{.*)", re.DOTALL)


class MistralFormat:
    """Reads both forms.

    Args:
        named: whether to write the newer form.
    """

    name = "mistral"
    markers = (_TAG, _ARGS, _CALL_ID)

    def __init__(self, named: bool = False) -> None:
        self._named = named

    def section(self, tools: Sequence[Tool]) -> str:
        example = f"{_TAG}NAME{_ARGS}{{...}}" if self._named else f'{_TAG}[{{"name": "...", "arguments": {{...}}}}]'
        return tools_section(tools, example)

    def format_call(self, name: str, arguments: Any) -> str:
        return self.format_calls([(name, arguments)])

    def format_calls(self, calls: Sequence[tuple[str, Any]]) -> str:
        if self._named:
            return "".join(f"{self.forced_prefix(name)}{json_text(arguments)}" for name, arguments in calls)
        entries = (f'{{"name": {_quoted(name)}, "arguments": {json_text(arguments)}}}' for name, arguments in calls)
        return f"{_TAG}[{', '.join(entries)}]"

    def format_result(self, content: str) -> str:
        return f"[TOOL_RESULTS]{json_text({'content': content})}[/TOOL_RESULTS]"

    def shape(self, name: str, parameters: Mapping[str, Any]) -> CallShape | None:
        if self._named:
            return CallShape(self.forced_prefix(name), parameters, "")
        return CallShape(f"{self.forced_prefix(name)} ", parameters, "}]")

    def forced_prefix(self, name: str | None) -> str:
        if self._named:
            return _TAG if name is None else f"{_TAG}{name}{_ARGS}"
        start = f'{_TAG}[{{"name":'
        return start if name is None else f'{start} {_quoted(name)}, "arguments":'

    def scanner(self, tools: Sequence[Tool] = ()) -> Scanner:
        return CallScanner(_OPENINGS)


def _quoted(name: str) -> str:
    return json.dumps(name, ensure_ascii=False)


class _Tagged:
    """A list of objects, or a name and an object, after the tag."""

    def __init__(self) -> None:
        self._value: JsonValue | None = None
        self._name = ""

    def step(self, char: str) -> Step:
        if self._value is not None:
            return self._value.step(char)
        if char.isspace():
            return Step.ON
        if char == "{" and self._name:
            self._value = JsonValue(())
        elif char == "[" and not self._name:
            self._value = JsonValue(_LIST_HEADS)
        elif len(self._name) == _LONGEST_NAME or char in '{}"' or self._name == "[":
            return Step.REFUSE
        else:
            self._name += char
        return Step.ON


_LIST_HEADS = ('{"name":', '{"arguments":', '{"id":', '{"type":')


def _read(raw: str) -> list[TextOrCall]:
    rest = raw.removeprefix(_TAG)
    named = _NAMED.fullmatch(rest)
    if named is None:
        return [*calls_of(read_json(rest), ("arguments", "parameters"))] or [raw]
    arguments = read_json(named.group(2))
    call = make_call(named.group(1), arguments) if isinstance(arguments, dict) else None
    return [raw] if call is None else [call]


_OPENINGS = (Opening(_TAG, _Tagged, _read),)
