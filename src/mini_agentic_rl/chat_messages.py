"""Parts of a chat message under the field names of various clients and data sets: text, thought, tool calls.

The gateway reads the messages of requests with these functions, `datasets` those of records.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

THOUGHT_FIELDS: Final = ("reasoning_content", "reasoning", "thinking", "thinking_content", "thought")
"""Fields of an assistant message for its thought; the first that is not empty counts."""

_TEXT_PARTS: Final = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}


def part_text(part: Any) -> str | None:
    """Return the text of a content part; None for a part that is not text."""
    kind = part.get("type") if isinstance(part, Mapping) else None
    field = _TEXT_PARTS.get(kind) if isinstance(kind, str) else None
    text = part.get(field) if field else None
    return text if isinstance(text, str) else None


def thought_of(message: Mapping[str, Any]) -> str | None:
    """Return the thought of an assistant message; None without one."""
    texts = [text for name in THOUGHT_FIELDS if isinstance(text := message.get(name), str)]
    return next(filter(None, texts), texts[0] if texts else None)


def calls_of(message: Mapping[str, Any]) -> Any:
    """Return `tool_calls` of a message as they are, or a list of the call under the older name `function_call`."""
    calls, older = message.get("tool_calls"), message.get("function_call")
    return calls if calls or older is None else [{"function": older}]
