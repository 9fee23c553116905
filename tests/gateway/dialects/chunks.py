"""Chat completions as servers of others give them: whole, and in pieces."""

from __future__ import annotations

from typing import Any

Message = dict[str, Any]


def _call(call_id: str, arguments: str) -> Message:
    return {"id": call_id, "type": "function", "function": {"name": "f", "arguments": arguments}}


CALLS: Message = {
    "role": "assistant",
    "content": "Let me see.",
    "tool_calls": [_call("a", '{"x": 1}'), _call("b", "{}")],
}
REASONED: Message = {"role": "assistant", "content": "It is 42.", "reasoning_content": "Hm, 12+30."}

_HEAD = {"id": "chatcmpl-1", "created": 5, "model": "theirs"}
_USAGE = {
    "prompt_tokens": 7,
    "completion_tokens": 9,
    "total_tokens": 16,
    "prompt_tokens_details": {"cached_tokens": 2},
    "completion_tokens_details": {"reasoning_tokens": 3},
}


CUT: Message = {"role": "assistant", "content": "na"}
"""An answer that the length bound ends."""


def _reason_of(message: Message) -> str:
    return "length" if message is CUT else "tool_calls" if message.get("tool_calls") else "stop"


def completion(message: Message) -> dict[str, Any]:
    """A whole answer."""
    choice = {"index": 0, "message": message, "finish_reason": _reason_of(message)}
    return {**_HEAD, "object": "chat.completion", "choices": [choice], "usage": _USAGE}


def chunk(delta: Message, reason: str | None = None) -> dict[str, Any]:
    """One piece."""
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    return {**_HEAD, "object": "chat.completion.chunk", "choices": [choice]}


def chunks(message: Message) -> list[dict[str, Any]]:
    """The same answer, cut after every third character."""
    parts = [chunk({"role": "assistant", "content": ""})]
    for field in ("reasoning_content", "content"):
        text = message.get(field) or ""
        parts += [chunk({field: text[at : at + 3]}) for at in range(0, len(text), 3)]
    for index, call in enumerate(message.get("tool_calls", ())):
        function = call["function"]
        begun = {"index": index, "id": call["id"], "function": {"name": function["name"], "arguments": ""}}
        parts.append(chunk({"tool_calls": [begun]}))
        for at in range(0, len(function["arguments"]), 3):
            piece = {"index": index, "function": {"arguments": function["arguments"][at : at + 3]}}
            parts.append(chunk({"tool_calls": [piece]}))
    return [*parts, chunk({}, _reason_of(message)), {**_HEAD, "choices": [], "usage": _USAGE}]
