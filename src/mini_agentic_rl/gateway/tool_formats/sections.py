"""What tells a model about its tools when its chat template cannot; kept short for small models."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ..messages import Tool


def tools_section(tools: Sequence[Tool], example: str) -> str:
    """The tools, one a line, and how a call is written."""
    lines = [json.dumps(_signature(tool), ensure_ascii=False, separators=(",", ":")) for tool in tools]
    return "\n".join(["Tools:", *lines, "To use one, write:", example])


def _signature(tool: Tool) -> dict[str, Any]:
    function = tool["function"]
    signature = {key: function[key] for key in ("name", "description") if function.get(key)}
    parameters = function.get("parameters") or {}
    # "type": "object" and additionalProperties hold for every tool's parameters and only cost tokens.
    kept = {key: value for key, value in parameters.items() if key not in ("type", "additionalProperties", "title")}
    return {**signature, "parameters": kept} if kept.get("properties") else signature


def json_text(value: Any) -> str:
    """JSON as models are used to it: a space after commas and colons, no escapes of letters. Text stays as it is."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
