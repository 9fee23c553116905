"""The conversation of a responses request: its input as chat messages, and the memory of responses.

The reasoning, text and calls of one answer are separate items. They are joined to one assistant message again, as it
was recorded.
"""

from __future__ import annotations

import json
import sys
import threading
from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from ...http import BadRequestError, encode
from ..errors import NotFoundError
from .base import Json, joined_text, text_of_part

INPUT: Final = "input"
"""The only argument of the function that stands for a custom tool."""
_ROLES: Final = {"user": "user", "system": "system", "developer": "system", "assistant": "assistant"}
_TEXT_PARTS: Final = {
    **dict.fromkeys(("input_text", "output_text", "text", "summary_text", "reasoning_text"), "text"),
    "refusal": "refusal",
}
"""The field of each kind of part that holds its text."""


def chat_messages(given: str | Sequence[Mapping[str, Any]] | None) -> list[Json]:
    """Return the messages of `input`: a text of the user, or items.

    Raises:
        BadRequestError: an item that cannot be read; `param` names it.
    """
    if given is None:
        return []
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    history = _History()
    for index, item in enumerate(given):
        history.take(item, f"input[{index}]")
    return history.messages


ID_PREFIXES: Final = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "cto",
}
"""Beginning of an item's id by its type."""


def input_items(given: str | Sequence[Mapping[str, Any]] | None, response_id: str) -> list[Json]:
    """Return the items of `input`, each with its type and an id."""
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    items: list[Json] = []
    for index, item in enumerate(given or ()):
        kind = item.get("type") or "message"
        default_id = f"{ID_PREFIXES.get(kind, 'item')}_{response_id.removeprefix('resp_')}_in{index}"
        whole = {**item, "type": kind, "id": item.get("id") or default_id}
        if kind == "message" and isinstance(item.get("content"), str):
            part = "output_text" if item.get("role") == "assistant" else "input_text"
            whole["content"] = [{"type": part, "text": item["content"]}]
        items.append(whole)
    return items


class _History:
    """The messages read so far. Items may still be added to the last assistant message."""

    def __init__(self) -> None:
        self.messages: list[Json] = []
        self._reasoning = ""

    def take(self, item: Mapping[str, Any], where: str) -> None:
        kind = item.get("type") or "message"
        if kind == "message":
            self._message(item, where)
        elif kind == "reasoning":
            self._reasoning += joined_text(item.get("content") or [], f"{where}.content", _TEXT_PARTS)
        elif kind == "function_call":
            if not isinstance(item.get("arguments"), str):
                raise BadRequestError(f"{where}.arguments: expected JSON text", param=f"{where}.arguments")
            self._call(item, where, item["arguments"])
        elif kind == "custom_tool_call":
            if not isinstance(item.get("input"), str):
                raise BadRequestError(f"{where}.input: expected text", param=f"{where}.input")
            self._call(item, where, json.dumps({INPUT: item["input"]}, ensure_ascii=False))
        elif kind in ("function_call_output", "custom_tool_call_output"):
            content = joined_text(item.get("output"), f"{where}.output", _TEXT_PARTS)
            self._add({"role": "tool", "tool_call_id": _call_id(item, where), "content": content})
        else:
            raise BadRequestError(
                f"{where}: {kind!r} cannot be read here; send message, function_call, custom_tool_call and reasoning "
                "items, and the outputs of calls",
                param=where,
            )

    def _message(self, item: Mapping[str, Any], where: str) -> None:
        role = item.get("role")
        if not isinstance(role, str) or role not in _ROLES:
            raise BadRequestError(f"{where}.role: use one of {', '.join(_ROLES)}, not {role!r}", param=f"{where}.role")
        if role != "assistant":
            self._add({"role": _ROLES[role], "content": _content(item.get("content"), f"{where}.content")})
            return
        text = joined_text(item.get("content"), f"{where}.content", _TEXT_PARTS)
        answer = self._last_answer()
        if answer is None or not answer.get("tool_calls"):
            self._add_answer(text)
        else:  # text after calls without results belongs to the same answer
            answer["content"] = (answer["content"] or "") + text
            self._attach_reasoning(answer)

    def _call(self, item: Mapping[str, Any], where: str, arguments: str) -> None:
        name = item.get("name")
        if not isinstance(name, str) or not name:
            raise BadRequestError(f"{where}.name: a function call names its function", param=f"{where}.name")
        answer = self._last_answer()
        if answer is None or (self._reasoning and not answer.get("tool_calls")):
            answer = self._add_answer(None)
        self._attach_reasoning(answer)
        call = {"id": _call_id(item, where), "type": "function", "function": {"name": name, "arguments": arguments}}
        answer.setdefault("tool_calls", []).append(call)

    def _last_answer(self) -> Json | None:
        """Return the last message if it is the assistant's."""
        return self.messages[-1] if self.messages and self.messages[-1]["role"] == "assistant" else None

    def _add_answer(self, text: str | None) -> Json:
        message: Json = {"role": "assistant", "content": text}
        self.messages.append(message)
        self._attach_reasoning(message)
        return message

    def _attach_reasoning(self, message: Json) -> None:
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
    """Return text, or parts of chat completions if there are images."""
    if not isinstance(content, list):
        return joined_text(content, where, _TEXT_PARTS)
    parts: list[Json] = []
    for index, part in enumerate(content):
        if isinstance(part, Mapping) and part.get("type") == "input_image" and isinstance(part.get("image_url"), str):
            detail = {"detail": part["detail"]} if isinstance(part.get("detail"), str) else {}
            parts.append({"type": "image_url", "image_url": {"url": part["image_url"], **detail}})
        else:
            parts.append({"type": "text", "text": text_of_part(part, f"{where}[{index}]", _TEXT_PARTS)})
    return parts if any(part["type"] == "image_url" for part in parts) else "".join(part["text"] for part in parts)


_ENTRY_BYTES: Final = 1024
"""Memory of a response beside its texts: objects, ids and table entries."""


class KeptResponse(NamedTuple):
    """A response as JSON, which takes an eighth of the memory of its objects."""

    messages: tuple[bytes, ...]
    """The conversation including the answer, without `instructions`."""
    body: bytes
    """The response object."""
    items: bytes
    """The items of the input."""
    size: int
    """Bytes of memory. Messages that conversations share are counted for each."""


class ResponseMemory:
    """Responses and their conversations, by owner and id. Thread-safe.

    The least recently used is dropped first.

    Args:
        max_responses: maximum number of responses.
        max_bytes: maximum memory.
    """

    def __init__(self, *, max_responses: int = 16_384, max_bytes: int = 256 * 1024 * 1024) -> None:
        self._max_responses = max_responses
        self._max_bytes = max_bytes
        self._kept: OrderedDict[tuple[Hashable, str], KeptResponse] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._kept)

    def find(self, owner: Hashable, response_id: str) -> KeptResponse:
        """Return a response; raises NotFoundError if it is not kept."""
        with self._lock:
            kept = self._kept.get((owner, response_id))
            if kept is None:
                raise NotFoundError(
                    f"Response with id {response_id!r} not found. It was not stored here, or has been dropped."
                )
            self._kept.move_to_end((owner, response_id))
            return kept

    def keep(
        self,
        owner: Hashable,
        response: Json,
        earlier: tuple[bytes, ...],
        messages: Sequence[Json],
        items: Sequence[Json],
    ) -> None:
        """Keep a response, unless it alone exceeds `max_bytes`.

        Args:
            owner: the only one who can read and continue it.
            response: the response object.
            earlier: the messages of the response that it continues, as they are kept.
            messages: the messages after them.
            items: those of the input.
        """
        encoded = (*earlier, *map(encode, messages))
        body, encoded_items = encode(response), encode(list(items))
        size = sum(map(sys.getsizeof, (*encoded, encoded, body, encoded_items))) + _ENTRY_BYTES
        if size > self._max_bytes:
            return
        key = (owner, response["id"])
        with self._lock:
            self._drop(key)
            self._kept[key] = KeptResponse(encoded, body, encoded_items, size)
            self._bytes += size
            while len(self._kept) > self._max_responses or self._bytes > self._max_bytes:
                self._drop(next(iter(self._kept)))

    def delete(self, owner: Hashable, response_id: str) -> None:
        """Drop a response; raises NotFoundError if it is not kept."""
        self.find(owner, response_id)
        with self._lock:
            self._drop((owner, response_id))

    def forget(self, owner: Hashable) -> None:
        """Drop all responses of an owner."""
        with self._lock:
            for key in [key for key in self._kept if key[0] == owner]:
                self._drop(key)

    def _drop(self, key: tuple[Hashable, str]) -> None:
        if key in self._kept:
            self._bytes -= self._kept.pop(key).size
