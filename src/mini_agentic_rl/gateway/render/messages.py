"""Chat messages in one plain shape, whatever client they come from.

A plain message is a dict with `role` and `content` (always text), and, where they apply, `tool_calls` (arguments
parsed to a dict), `reasoning_content` (text), `tool_call_id` and `name`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from ..errors import BadRequestError
from ..tool_formats import parse_arguments

Message: TypeAlias = Mapping[str, Any]

_ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
_TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}


def plain_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """`messages` in plain shape.

    Raises:
        BadRequestError: an unknown role, a content part that is not text, or a malformed tool call; `param` says where.
    """
    return [_plain(message, f"messages[{index}]") for index, message in enumerate(messages)]


def _plain(message: Message, where: str) -> dict[str, Any]:
    given = message.get("role")
    role = _ROLES.get(given) if isinstance(given, str) else None
    if role is None:
        known = ", ".join(_ROLES)
        raise BadRequestError(f"unknown role {given!r}; use one of {known}", param=f"{where}.role")
    plain: dict[str, Any] = {"role": role, "content": _text(message.get("content"), f"{where}.content")}
    calls = message.get("tool_calls")
    if role == "assistant" and calls:
        if not isinstance(calls, list | tuple):
            raise BadRequestError("tool_calls must be a list", param=f"{where}.tool_calls")
        plain["tool_calls"] = [_tool_call(call, f"{where}.tool_calls[{index}]") for index, call in enumerate(calls)]
    thought = message.get("reasoning_content", message.get("reasoning"))
    if role == "assistant" and isinstance(thought, str):
        plain["reasoning_content"] = thought
    for key in ("tool_call_id", "name"):
        if message.get(key) is not None:
            plain[key] = message[key]
    return plain


def _text(content: Any, where: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        raise BadRequestError("content must be text or a list of parts", param=where)
    texts = []
    for index, part in enumerate(content):
        kind = part.get("type") if isinstance(part, Mapping) else None
        field = _TEXT_PARTS.get(kind) if isinstance(kind, str) else None
        value = part.get(field) if field else None
        if not isinstance(value, str):
            raise BadRequestError(f"this model reads text only, not {kind!r}", param=f"{where}[{index}]")
        texts.append(value)
    return "".join(texts)


def _tool_call(call: Any, where: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise BadRequestError("a tool call needs function.name", param=where)
    return {
        "id": call.get("id") or "",
        "type": "function",
        "function": {"name": function["name"], "arguments": parse_arguments(function.get("arguments"))},
    }
