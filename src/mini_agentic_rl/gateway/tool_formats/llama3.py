"""The format of Llama 3.1 to 3.3: an object that names its `parameters`, several of them separated by semicolons.

{"name": "calculate", "parameters": {"expression": "2+2"}}

`<|python_tag|>` may stand before it. Without it a call is read only where a line begins.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from .base import CallShape, Scanner, TextOrCall, Tool, json_text, tools_section
from .json_calls import JsonValue, MarkedJson, calls_of, read_json
from .scanner import CallScanner, Opening

_TAG = "<|python_tag|>"
_HEADS = ('"name":', '"parameters":', '"arguments":', '"type":', '"id":')
_KEYS = ("parameters", "arguments")


class Llama3Format:
    """Bare objects."""

    name = "llama3"
    markers = (_TAG,)

    def section(self, tools: Sequence[Tool]) -> str:
        return tools_section(tools, '{"name": "...", "parameters": {...}}')

    def format_call(self, name: str, arguments: Any) -> str:
        return f"{self.forced_prefix(name)} {json_text(arguments)}}}"

    def format_calls(self, calls: Sequence[tuple[str, Any]]) -> str:
        return "; ".join(self.format_call(name, arguments) for name, arguments in calls)

    def format_result(self, content: str) -> str:
        return json_text({"output": content})

    def shape(self, name: str, parameters: Mapping[str, Any]) -> CallShape | None:
        return CallShape(f"{self.forced_prefix(name)} ", parameters, "}")

    def forced_prefix(self, name: str | None) -> str:
        if name is None:
            return '{"name":'
        return f'{{"name": {json.dumps(name, ensure_ascii=False)}, "parameters":'

    def scanner(self, tools: Sequence[Tool] = ()) -> Scanner:
        return CallScanner(_OPENINGS, separators=";")


def _read(raw: str) -> list[TextOrCall]:
    return [*calls_of(read_json(raw.removeprefix(_TAG)), _KEYS)] or [raw]


_OPENINGS = (
    Opening(_TAG, lambda: MarkedJson({"{": _HEADS}), _read),
    Opening("{", lambda: JsonValue(_HEADS), _read, at_line_start=True),
)
