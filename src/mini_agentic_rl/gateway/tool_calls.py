"""Tool calls in the Hermes form, which Qwen and many others use: writing them into prompts, reading them out of text.

<tool_call>
{"name": "calculate", "arguments": {"expression": "2+2"}}
</tool_call>
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .messages import Tool, parse_arguments

OPEN = "<tool_call>"
CLOSE = "</tool_call>"


@dataclass(frozen=True)
class ToolCall:
    """One call found in sampled text."""

    id: str
    """`call_` and 24 hex digits."""
    name: str
    """Name of the function."""
    arguments: str
    """JSON text of an object."""

    def as_message(self) -> dict[str, Any]:
        """As it stands in an OpenAI assistant message."""
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.arguments}}


def tools_section(tools: Sequence[Tool]) -> str:
    """What tells a model about its tools when its chat template cannot; kept short for small models."""
    lines = [json.dumps(_signature(tool), ensure_ascii=False, separators=(",", ":")) for tool in tools]
    return "\n".join(
        ["Tools:", *lines, "To use one, write:", f'{OPEN}\n{{"name": "...", "arguments": {{...}}}}\n{CLOSE}']
    )


def _signature(tool: Tool) -> dict[str, Any]:
    function = tool["function"]
    signature = {key: function[key] for key in ("name", "description") if function.get(key)}
    parameters = function.get("parameters") or {}
    # "type": "object" and additionalProperties hold for every tool's parameters and only cost tokens.
    kept = {key: value for key, value in parameters.items() if key not in ("type", "additionalProperties", "title")}
    return {**signature, "parameters": kept} if kept.get("properties") else signature


def format_call(name: str, arguments: Any) -> str:
    """The text that makes a call; `arguments` is an object, or text to be kept as it is."""
    value = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return f'{OPEN}\n{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments": {value}}}\n{CLOSE}'


def format_result(content: str) -> str:
    """The text that hands a tool's result to the model."""
    return f"<tool_response>\n{content}\n</tool_response>"


def forced_prefix(name: str | None) -> str:
    """The start of an assistant turn that must call the tool `name`, or any tool when None.

    It ends where a tokenizer would start a new token, so that the continuation tokenises as usual.
    """
    if name is None:
        return f'{OPEN}\n{{"name":'
    return f'{OPEN}\n{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments":'


def parse_call(body: str) -> ToolCall | None:
    """The call that stands between the tags, or None when it is malformed."""
    try:
        call = json.loads(body, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return None
    if not isinstance(call, dict) or not isinstance(call.get("name"), str) or not call["name"]:
        return None
    arguments = parse_arguments(call.get("arguments"))
    if not isinstance(arguments, dict):
        return None
    return ToolCall(f"call_{uuid.uuid4().hex[:24]}", call["name"], json.dumps(arguments, ensure_ascii=False))


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


class ToolCallScanner:
    """Splits a growing text into plain text and tool calls.

    Text from an opening tag on is held back until the call is complete; a malformed call comes out as the text it is.
    White space next to a call is dropped. The pieces do not depend on how the text was cut up before it was fed.
    """

    def __init__(self) -> None:
        self._pending = ""
        self._after_call = False

    def feed(self, text: str) -> list[str | ToolCall]:
        """The pieces that are certain once `text` has been added."""
        self._pending += text
        pieces: list[str | ToolCall] = []
        while True:
            start = self._pending.find(OPEN)
            if start < 0:
                keep = _held_back(self._pending)
                self._emit(pieces, self._pending[:keep])
                self._pending = self._pending[keep:]
                return pieces
            end = self._pending.find(CLOSE, start)
            if end < 0:
                before = self._pending[:start]
                kept = before.rstrip()
                self._emit(pieces, kept)
                self._pending = self._pending[len(kept) :]
                return pieces
            self._take(pieces, start, parse_call(self._pending[start + len(OPEN) : end]), end + len(CLOSE))

    def finish(self) -> list[str | ToolCall]:
        """The rest. A call whose closing tag is missing counts when it is complete otherwise."""
        pieces: list[str | ToolCall] = []
        start = self._pending.find(OPEN)
        call = parse_call(self._pending[start + len(OPEN) :]) if start >= 0 else None
        self._take(pieces, max(start, 0), call, len(self._pending))
        return pieces

    def _take(self, pieces: list[str | ToolCall], start: int, call: ToolCall | None, end: int) -> None:
        if call is None:
            self._emit(pieces, self._pending[:end])
        else:
            self._emit(pieces, self._pending[:start].rstrip())
            pieces.append(call)
            self._after_call = True
        self._pending = self._pending[end:]

    def _emit(self, pieces: list[str | ToolCall], text: str) -> None:
        if self._after_call:
            text = text.lstrip()
        if text:
            self._after_call = False
            pieces.append(text)


def _held_back(text: str) -> int:
    """Where the part of `text` begins that may turn out to precede or begin a call."""
    end = len(text)
    for size in range(min(len(OPEN) - 1, end), 0, -1):
        if OPEN.startswith(text[-size:]):
            end -= size
            break
    return len(text[:end].rstrip())


def split_tool_calls(text: str) -> tuple[str, list[ToolCall]]:
    """All of a text: what is left without its calls, and the calls."""
    scanner = ToolCallScanner()
    pieces = scanner.feed(text) + scanner.finish()
    content = "".join(piece for piece in pieces if isinstance(piece, str))
    return content, [piece for piece in pieces if isinstance(piece, ToolCall)]
