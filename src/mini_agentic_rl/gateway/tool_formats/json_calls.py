"""Calls written as JSON: where their text ends in a growing answer, and what it says.

Whatever a model may have written, reading it gives calls or nothing; it never raises.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ...http import parse_json
from .base import ToolCall
from .scanner import Step


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)
_SPACE = re.compile(r"\s*")


def read_json(text: str) -> Any:
    """Return the value of a JSON text; None when it is none, or says only `null`."""
    try:
        return _DECODER.decode(text)
    except (ValueError, RecursionError):
        return None


def parse_values(text: str, start: int) -> tuple[list[Any], int]:
    """Return the JSON values that stand in a row from `start`, white space between them, and the end of the last."""
    values: list[Any] = []
    end = start
    while start < len(text):
        try:
            value, end = _DECODER.raw_decode(text, start)
        except (ValueError, RecursionError):
            break
        values.append(value)
        space = _SPACE.match(text, end)
        start = space.end() if space else end
    return values, end


def make_call(name: Any, arguments: Any) -> ToolCall | None:
    """Return a call; None when the name is no name or the arguments are no JSON object (or the text of one)."""
    if not isinstance(name, str) or not name:
        return None
    arguments = parse_arguments(arguments)
    if not isinstance(arguments, dict):
        return None
    try:
        name, arguments = parse_json(json.dumps([name, arguments], allow_nan=False))
    except (TypeError, ValueError, RecursionError):  # infinite numbers, or nested too deeply
        return None
    return ToolCall.new(name, json.dumps(arguments, ensure_ascii=False))


def calls_of(value: Any, keys: Sequence[str]) -> list[ToolCall]:
    """Return the calls in `{"name": ..., KEY: {...}}` or a list of such objects; none when any of them is malformed.

    Args:
        value: a JSON value.
        keys: names that the arguments may go by. One of them has to be there: an object that merely has a name is data.
    """
    entries = value if isinstance(value, list) else [value]
    calls = []
    for entry in entries:
        if not isinstance(entry, dict):
            return []
        key = next((key for key in keys if key in entry), None)
        call = None if key is None else make_call(entry.get("name"), entry[key])
        if call is None:
            return []
        calls.append(call)
    return calls


def parse_arguments(arguments: Any) -> Any:
    """Return tool-call arguments as an object; text that is no JSON object stays text."""
    if arguments is None or arguments == "":
        return {}
    if not isinstance(arguments, str):
        return arguments
    try:
        parsed = parse_json(arguments)
    except ValueError:
        return arguments
    return parsed if isinstance(parsed, dict) else arguments


class JsonValue:
    """A block that is one JSON object or list, from after its first bracket.

    Args:
        heads: what may follow the first bracket, white space left out, such as `"name":`; anything else is refused.
    """

    def __init__(self, heads: Sequence[str]) -> None:
        self._heads = heads
        self._head = ""
        self._depth = 1
        self._in_string = False
        self._escaped = False

    def step(self, char: str) -> Step:
        """Take the next character."""
        if self._heads and not char.isspace():
            self._head += char
            if self._head in self._heads:
                self._heads = ()
            elif not any(head.startswith(self._head) for head in self._heads):
                return Step.REFUSE
        if self._in_string:
            if self._escaped:
                self._escaped = False
            elif char == "\\":
                self._escaped = True
            elif char == '"':
                self._in_string = False
        elif char == '"':
            self._in_string = True
        elif char in "{[":
            self._depth += 1
        elif char in "}]":
            self._depth -= 1
        return Step.ON if self._depth else Step.END


class MarkedJson:
    """A block that is one JSON object or list, from after a mark that stands before it.

    Args:
        heads: what each kind of bracket may be followed by; a bracket that is no key is refused.
    """

    def __init__(self, heads: Mapping[str, Sequence[str]]) -> None:
        self._heads = heads
        self._value: JsonValue | None = None

    def step(self, char: str) -> Step:
        """Take the next character."""
        if self._value is not None:
            return self._value.step(char)
        if char in self._heads:
            self._value = JsonValue(self._heads[char])
            return Step.ON
        return Step.ON if char.isspace() else Step.REFUSE
