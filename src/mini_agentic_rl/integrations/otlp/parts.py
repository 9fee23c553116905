"""Chat messages in parts, as OpenTelemetry's conventions for generative AI have them.

A message of the chat API, `{"role", "content", "tool_calls"}`, becomes `{"role", "parts": [...]}`; texts are cut at a
bound, since collectors refuse large requests and each call repeats the conversation before it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

LONGEST_TEXT: Final = 32_768
"""Characters of one text; what is longer is cut, and says so."""
LONGEST_JSON: Final = 4_000_000
"""Characters of stored messages that are read at all."""

_FINISH_REASONS: Final = {"tool_calls": "tool_call", "function_call": "tool_call", "cancelled": "error"}
_THINKING: Final = ("reasoning_content", "reasoning")


def read_messages(text: Any) -> list[dict[str, Any]]:
    """Return messages of the chat API out of their JSON text; none where it is too long or no such text."""
    if not isinstance(text, str) or len(text) > LONGEST_JSON:
        return []
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return []
    return [one for one in (value if isinstance(value, list) else [value]) if isinstance(one, dict)]


def input_messages(messages: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return what a call was sent, in parts."""
    return [{"role": str(message.get("role") or "user"), "parts": message_parts(message)} for message in messages]


def output_messages(messages: Iterable[Mapping[str, Any]], finish_reasons: Sequence[str]) -> list[dict[str, Any]]:
    """Return what a call answered, in parts, each answer with the reason of its end."""
    found = []
    for number, message in enumerate(messages):
        reason = str(finish_reasons[number]) if number < len(finish_reasons) else "stop"
        found.append(
            {
                "role": str(message.get("role") or "assistant"),
                "parts": message_parts(message),
                "finish_reason": _FINISH_REASONS.get(reason, reason),
            }
        )
    return found


def message_parts(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the parts of one message: thoughts, texts, calls of tools, or the result of one.

    A message that another instrumentation has put into parts keeps them.
    """
    if isinstance(message.get("parts"), list):
        return list(message["parts"])
    if message.get("role") == "tool":
        result = "".join(str(part.get("content", "")) for part in _contents(message.get("content")))
        return [_filled({"type": "tool_call_response", "id": message.get("tool_call_id"), "response": cut(result)})]
    thoughts = [message[name] for name in _THINKING if isinstance(message.get(name), str) and message[name]]
    parts = [{"type": "reasoning", "content": cut(thought)} for thought in thoughts[:1]]
    parts += _contents(message.get("content"))
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function") if isinstance(call, Mapping) else None
        if isinstance(function, Mapping):
            arguments = tool_arguments(function.get("arguments"))
            name = str(function.get("name") or "")
            parts.append(_filled({"type": "tool_call", "id": call.get("id"), "name": name, "arguments": arguments}))
    return parts


def tool_arguments(given: Any) -> Any:
    """Return the arguments of a tool's call as values where they are JSON, else as their text."""
    if not isinstance(given, str):
        return given
    if len(given) > LONGEST_TEXT:
        return cut(given)
    try:
        return json.loads(given)
    except (ValueError, RecursionError):
        return given


def cut(text: str) -> str:
    """Return a text of bounded length, which says how much of it is missing."""
    left = len(text) - LONGEST_TEXT
    return text if left <= 0 else f"{text[:LONGEST_TEXT]}… ({left:,} more characters are not exported)"


def as_json(value: Any) -> str:
    """Return JSON text without spaces; what JSON does not know becomes text."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)


def _contents(content: Any) -> list[dict[str, Any]]:
    if content is None or content == "":
        return []
    if not isinstance(content, list):
        return [{"type": "text", "content": cut(content if isinstance(content, str) else as_json(content))}]
    return [_content(part) for part in content]


def _content(part: Any) -> dict[str, Any]:
    if not isinstance(part, Mapping):
        return {"type": "text", "content": cut(str(part))}
    kind = str(part.get("type") or "text")
    if isinstance(part.get("text"), str):
        return {"type": "text", "content": cut(part["text"])}
    if kind == "image_url":
        image = part.get("image_url")
        address = str(image.get("url") if isinstance(image, Mapping) else image)
        if not address.startswith("data:"):
            return {"type": "uri", "modality": "image", "uri": cut(address)}
    return {"type": kind, "content": f"{len(as_json(part)):,} characters of {kind} are not exported"}


def _filled(part: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in part.items() if value is not None}
