"""Input items as chat messages.

What one chat message of the model said comes back as several items: its reasoning, its text, its calls. They are put
together again, so that a client which sends the whole history sends the messages that were recorded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from ...errors import BadRequestError
from ..base import Json

_ROLES: Final = {"user": "user", "system": "system", "developer": "system", "assistant": "assistant"}
_TEXT_PARTS: Final = {
    "input_text": "text",
    "output_text": "text",
    "text": "text",
    "summary_text": "text",
    "reasoning_text": "text",
    "refusal": "refusal",
}


def chat_messages(given: str | Sequence[Mapping[str, Any]] | None) -> list[Json]:
    """The messages that `input` holds: text from the user, or items.

    Raises:
        BadRequestError: an item that cannot be read; `param` says which.
    """
    if given is None:
        return []
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    history = _History()
    for index, item in enumerate(given):
        history.take(item, f"input[{index}]")
    return history.messages


class _History:
    """Messages, and the one of the model that further items still belong to."""

    def __init__(self) -> None:
        self.messages: list[Json] = []
        self._reasoning = ""

    def take(self, item: Mapping[str, Any], where: str) -> None:
        kind = item.get("type") or "message"
        if kind == "message":
            self._message(item, where)
        elif kind == "reasoning":
            self._reasoning += _text(item.get("content") or [], f"{where}.content")
        elif kind == "function_call":
            self._call(item, where)
        elif kind == "function_call_output":
            self._result(item, where)
        else:
            raise BadRequestError(
                f"{where}: {kind!r} cannot be read here; send message, function_call, function_call_output and "
                "reasoning items",
                param=where,
            )

    def _message(self, item: Mapping[str, Any], where: str) -> None:
        role = item.get("role")
        if not isinstance(role, str) or role not in _ROLES:
            raise BadRequestError(f"{where}.role: use one of {', '.join(_ROLES)}, not {role!r}", param=f"{where}.role")
        if role != "assistant":
            self._add({"role": _ROLES[role], "content": _content(item.get("content"), f"{where}.content")})
            return
        text = _text(item.get("content"), f"{where}.content")
        speaking = self._speaking()
        if speaking is not None and speaking.get("tool_calls"):
            # Text beside calls that no result follows is of the same answer.
            speaking["content"] = (speaking["content"] or "") + text
            self._remember_reasoning(speaking)
        else:
            self._answer(text)

    def _call(self, item: Mapping[str, Any], where: str) -> None:
        name, arguments = item.get("name"), item.get("arguments")
        if not isinstance(name, str) or not name:
            raise BadRequestError(f"{where}.name: a function call names its function", param=f"{where}.name")
        if not isinstance(arguments, str):
            raise BadRequestError(f"{where}.arguments: expected JSON text", param=f"{where}.arguments")
        speaking = self._speaking()
        if speaking is None or (self._reasoning and not speaking.get("tool_calls")):
            speaking = self._answer(None)
        self._remember_reasoning(speaking)
        call = {"id": _call_id(item, where), "type": "function", "function": {"name": name, "arguments": arguments}}
        speaking.setdefault("tool_calls", []).append(call)

    def _result(self, item: Mapping[str, Any], where: str) -> None:
        content = _text(item.get("output"), f"{where}.output")
        self._add({"role": "tool", "tool_call_id": _call_id(item, where), "content": content})

    def _speaking(self) -> Json | None:
        """The last message, when the model said it."""
        return self.messages[-1] if self.messages and self.messages[-1]["role"] == "assistant" else None

    def _answer(self, text: str | None) -> Json:
        message: Json = {"role": "assistant", "content": text}
        self.messages.append(message)
        self._remember_reasoning(message)
        return message

    def _remember_reasoning(self, message: Json) -> None:
        if self._reasoning:
            message["reasoning_content"] = message.get("reasoning_content", "") + self._reasoning
            self._reasoning = ""

    def _add(self, message: Json) -> None:
        self._reasoning = ""
        self.messages.append(message)


def _call_id(item: Mapping[str, Any], where: str) -> str:
    call_id = item.get("call_id")
    if not isinstance(call_id, str):
        raise BadRequestError(f"{where}.call_id: expected the id of a call", param=f"{where}.call_id")
    return call_id


def _content(content: Any, where: str) -> str | list[Json]:
    """Text, or chat's parts where there are images among it."""
    if isinstance(content, str):
        return content
    parts = [_part(part, f"{where}[{index}]") for index, part in enumerate(_list(content, where))]
    if all(part["type"] == "text" for part in parts):
        return "".join(part["text"] for part in parts)
    return parts


def _text(content: Any, where: str) -> str:
    if isinstance(content, str):
        return content
    return "".join(_text_of(part, f"{where}[{index}]") for index, part in enumerate(_list(content, where)))


def _part(part: Any, where: str) -> Json:
    if isinstance(part, Mapping) and part.get("type") == "input_image" and isinstance(part.get("image_url"), str):
        image = {name: part[name] for name in ("detail",) if isinstance(part.get(name), str)}
        return {"type": "image_url", "image_url": {"url": part["image_url"], **image}}
    return {"type": "text", "text": _text_of(part, where)}


def _text_of(part: Any, where: str) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else None
    field = _TEXT_PARTS.get(kind) if isinstance(kind, str) else None
    text = part.get(field) if field else None
    if not isinstance(text, str):
        raise BadRequestError(f"{where}: expected a part that is text, not {kind!r}", param=where)
    return text


def _list(content: Any, where: str) -> list[Any]:
    if not isinstance(content, list):
        raise BadRequestError(f"{where}: expected text or a list of parts", param=where)
    return content
