"""Messages of content blocks as chat messages.

Blocks of one assistant message become one chat message, as it was recorded. Results of tools, which stand in the user's
messages here, become messages of their own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ...errors import BadRequestError
from ..base import Json
from .request import GivenMessage, MessagesRequest

INVALID_JSON: Final = "INVALID_JSON"
"""The one field of a tool's input that holds arguments which are no JSON object, as Anthropic's guides name it."""


def chat_messages(request: MessagesRequest) -> list[Json]:
    """The conversation, system text first.

    Raises:
        BadRequestError: a block that cannot be read; `param` says which.
    """
    messages: list[Json] = []
    if request.system:
        messages.append({"role": "system", "content": _text(request.system, "system", "\n")})
    for index, given in enumerate(request.messages):
        where = f"messages[{index}].content"
        if given.role == "user":
            messages += _from_user(given, where)
        elif given.role == "assistant":
            messages.append(_from_assistant(given, where))
        else:
            messages.append({"role": "system", "content": _text(given.content, where, "\n")})
    if messages[-1]["role"] == "assistant":
        raise BadRequestError(
            "messages: the last one is the assistant's, and this server does not continue a message that has been "
            "begun. End with a message of the user.",
            param="messages",
        )
    return messages


def _from_user(given: GivenMessage, where: str) -> list[Json]:
    """Results of tools first, which is where the API wants them, then what the user says."""
    if isinstance(given.content, str):
        return [{"role": "user", "content": given.content}]
    results: list[Json] = []
    parts: list[Json] = []
    for index, block in enumerate(given.content):
        at = f"{where}[{index}]"
        if block.get("type") == "tool_result":
            results.append(_result(block, at))
        elif block.get("type") == "image":
            parts.append(_image(block, at))
        else:
            parts.append({"type": "text", "text": _text_of(block, at)})
    if all(part["type"] == "text" for part in parts):
        said: str | list[Json] = "\n".join(part["text"] for part in parts)
    else:
        said = parts
    return [*results, {"role": "user", "content": said}] if parts or not results else results


def _from_assistant(given: GivenMessage, where: str) -> Json:
    if isinstance(given.content, str):
        return {"role": "assistant", "content": given.content}
    text, reasoning = "", ""
    calls = []
    for index, block in enumerate(given.content):
        at = f"{where}[{index}]"
        kind = block.get("type")
        if kind == "tool_use":
            calls.append(_call(block, at))
        elif kind == "thinking" and isinstance(block.get("thinking"), str):
            reasoning += block["thinking"]
        elif kind != "redacted_thinking":
            text += _text_of(block, at)
    message: Json = {"role": "assistant", "content": text or (None if calls else "")}
    if reasoning:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = calls
    return message


def _call(block: Mapping[str, Any], where: str) -> Json:
    call_id, name, given = block.get("id"), block.get("name"), block.get("input")
    if not isinstance(call_id, str) or not isinstance(name, str) or not name or not isinstance(given, Mapping):
        raise BadRequestError(f"{where}: tool_use needs an id, a name and an input that is an object", param=where)
    raw = given.get(INVALID_JSON)
    arguments = raw if isinstance(raw, str) and len(given) == 1 else json.dumps(given, ensure_ascii=False)
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _result(block: Mapping[str, Any], where: str) -> Json:
    call_id = block.get("tool_use_id")
    if not isinstance(call_id, str):
        raise BadRequestError(f"{where}.tool_use_id: expected the id of a call", param=f"{where}.tool_use_id")
    content = block.get("content")
    text = "" if content is None else _text(content, f"{where}.content", "\n")
    if block.get("is_error") is True:  # chat's results have no such mark, so the model is told in words
        text = f"error: {text}"
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def _image(block: Mapping[str, Any], where: str) -> Json:
    source = block.get("source")
    kind = source.get("type") if isinstance(source, Mapping) else None
    if isinstance(source, Mapping) and kind == "url" and isinstance(source.get("url"), str):
        return {"type": "image_url", "image_url": {"url": source["url"]}}
    if isinstance(source, Mapping) and kind == "base64" and isinstance(source.get("data"), str):
        url = f"data:{source.get('media_type')};base64,{source['data']}"
        return {"type": "image_url", "image_url": {"url": url}}
    raise BadRequestError(f"{where}.source: expected a url or base64 data", param=f"{where}.source")


def _text(content: Any, where: str, between: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        raise BadRequestError(f"{where}: expected text or a list of blocks", param=where)
    return between.join(_text_of(block, f"{where}[{index}]") for index, block in enumerate(content))


def _text_of(block: Any, where: str) -> str:
    kind = block.get("type") if isinstance(block, Mapping) else None
    if kind != "text" or not isinstance(block.get("text"), str):
        raise BadRequestError(f"{where}: expected a block of text, not {kind!r}", param=where)
    text: str = block["text"]
    return text
