"""The Hermes format, which Qwen and many others use.

<tool_call>
{"name": "calculate", "arguments": {"expression": "2+2"}}
</tool_call>
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from .base import CallShape, Scanner, TextOrCall, Tool, json_text, tools_section
from .json_calls import make_call, read_json
from .scanner import CallScanner, Opening, Until

_OPEN = "<tool_call>"
_CLOSE = "</tool_call>"


class HermesFormat:
    """Each call between tags of its own."""

    name = "hermes"
    markers = (_OPEN, _CLOSE)

    def section(self, tools: Sequence[Tool]) -> str:
        return tools_section(tools, f'{_OPEN}\n{{"name": "...", "arguments": {{...}}}}\n{_CLOSE}')

    def format_call(self, name: str, arguments: Any) -> str:
        return f"{self.forced_prefix(name)} {json_text(arguments)}}}\n{_CLOSE}"

    def format_calls(self, calls: Sequence[tuple[str, Any]]) -> str:
        return "\n".join(self.format_call(name, arguments) for name, arguments in calls)

    def format_result(self, content: str) -> str:
        return f"<tool_response>\n{content}\n</tool_response>"

    def shape(self, name: str, parameters: Mapping[str, Any]) -> CallShape | None:
        return CallShape(f"{self.forced_prefix(name)} ", parameters, f"}}\n{_CLOSE}")

    def forced_prefix(self, name: str | None) -> str:
        if name is None:
            return f'{_OPEN}\n{{"name":'
        return f'{_OPEN}\n{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments":'

    def scanner(self, tools: Sequence[Tool] = ()) -> Scanner:
        return CallScanner(_OPENINGS)


def _read(raw: str) -> list[TextOrCall]:
    """Read one call. One whose closing tag the end of the text cut off counts when it is complete otherwise."""
    value = read_json(raw.removeprefix(_OPEN).removesuffix(_CLOSE))
    call = make_call(value.get("name"), value.get("arguments")) if isinstance(value, dict) else None
    return [raw] if call is None else [call]


_OPENINGS = (Opening(_OPEN, lambda: Until(_CLOSE), _read),)
