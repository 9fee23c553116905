"""Plain JSON: one object or a list of them, bare, in a ```json fence, or after `<|tool_call|>`.

{"name": "calculate", "arguments": {"expression": "2+2"}}

A bare call is read only where a line begins. Granite and Phi-4 write a list after the mark, which is a special token.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from .base import CallShape, Scanner, TextOrCall, Tool, json_text, tools_section
from .json_calls import JsonValue, MarkedJson, calls_of, parse_values, read_json
from .scanner import CallScanner, Opening, Step

_MARK = "<|tool_call|>"
_FENCE = "```"
_LABELS = ("json", "tool_call", "tool_calls")
_HEADS = ('"name":', '"arguments":', '"parameters":', '"id":', '"type":')
_LIST_HEADS = tuple(f"{{{head}" for head in _HEADS)
_KEYS = ("arguments", "parameters")
_BRACKET = re.compile(r"[{\[]")


class JsonFormat:
    """Reads all forms.

    Args:
        marked: whether to write a list after the mark; else bare objects, one a line.
    """

    name = "json"
    markers = (_MARK,)

    def __init__(self, marked: bool = False) -> None:
        self._before, self._after = (f"{_MARK}[", "]") if marked else ("", "")
        self._between = ", " if marked else "\n"

    def section(self, tools: Sequence[Tool]) -> str:
        return tools_section(tools, f'{self._before}{{"name": "...", "arguments": {{...}}}}{self._after}')

    def format_call(self, name: str, arguments: Any) -> str:
        return self.format_calls([(name, arguments)])

    def format_calls(self, calls: Sequence[tuple[str, Any]]) -> str:
        entries = (f"{_start(name)} {json_text(arguments)}}}" for name, arguments in calls)
        return f"{self._before}{self._between.join(entries)}{self._after}"

    def format_result(self, content: str) -> str:
        return json_text({"result": content})

    def shape(self, name: str, parameters: Mapping[str, Any]) -> CallShape | None:
        return CallShape(f"{self.forced_prefix(name)} ", parameters, f"}}{self._after}")

    def forced_prefix(self, name: str | None) -> str:
        return self._before + _start(name)

    def scanner(self, tools: Sequence[Tool] = ()) -> Scanner:
        return CallScanner(_OPENINGS)


def _start(name: str | None) -> str:
    return '{"name":' if name is None else f'{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments":'


class _Fenced:
    """Values in a fence: a label that says JSON or nothing, values in a row, the closing fence."""

    def __init__(self) -> None:
        self._label = ""
        self._value: JsonValue | None = None
        self._complete = False
        self._ticks = 0

    def step(self, char: str) -> Step:
        if self._value is not None and not self._complete:
            step = self._value.step(char)
            self._complete = step is Step.END
            return Step.ON if self._complete else step
        if self._complete:
            return self._step_after(char)
        if char in "{[" and self._label in ("", *_LABELS):
            self._value = JsonValue(_HEADS if char == "{" else _LIST_HEADS)
        elif not char.isspace():
            self._label += char
            if not any(label.startswith(self._label) for label in _LABELS):
                return Step.REFUSE
        return Step.ON

    def _step_after(self, char: str) -> Step:
        if char == "`":
            self._ticks += 1
            return Step.END if self._ticks == len(_FENCE) else Step.ON
        if self._ticks or not (char.isspace() or char in "{["):
            return Step.END
        if char in "{[":
            self._value, self._complete = JsonValue(()), False
        return Step.ON


def _read_bare(raw: str) -> list[TextOrCall]:
    return [*calls_of(read_json(raw.removeprefix(_MARK)), _KEYS)] or [raw]


def _read_fenced(raw: str) -> list[TextOrCall]:
    """Return the calls, and what stands after them in place of the closing fence."""
    bracket = _BRACKET.search(raw)
    if bracket is None:
        return [raw]
    values, end = parse_values(raw, bracket.start())
    calls = [calls_of(value, _KEYS) for value in values]
    if not all(calls) or not calls:
        return [raw]
    rest = raw[end:].strip().removeprefix(_FENCE)
    return [*(call for found in calls for call in found), *([rest] if rest else [])]


_OPENINGS = (
    Opening(_MARK, lambda: MarkedJson({"{": _HEADS, "[": _LIST_HEADS}), _read_bare),
    Opening(_FENCE, _Fenced, _read_fenced),
    Opening("{", lambda: JsonValue(_HEADS), _read_bare, at_line_start=True),
    Opening("[", lambda: JsonValue(_LIST_HEADS), _read_bare, at_line_start=True),
)
