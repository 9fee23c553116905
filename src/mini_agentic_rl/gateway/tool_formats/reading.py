"""Calls out of JSON text. Whatever a model may have written, this gives calls or nothing; it never raises."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from ...http import parse_json
from ..messages import parse_arguments
from .base import ToolCall


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)
_SPACE = re.compile(r"\s*")


def read_json(text: str) -> Any:
    """The value of a JSON text; None when it is none, or says only `null`."""
    try:
        return _DECODER.decode(text)
    except (ValueError, RecursionError):
        return None


def parse_values(text: str, start: int) -> tuple[list[Any], int]:
    """The JSON values that stand in a row from `start`, white space between them, and where the last one ends."""
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
    """A call, or None when the name is no name or the arguments are no JSON object (or the text of one)."""
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
    """The calls in `{"name": ..., KEY: {...}}` or a list of such objects; none when any of them is malformed.

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
