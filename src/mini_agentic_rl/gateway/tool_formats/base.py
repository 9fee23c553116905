"""The protocol of a tool format: how calls are written into prompts, and how they are read out of sampled text."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

Tool: TypeAlias = Mapping[str, Any]
"""A tool as chat completions define it: `{"type": "function", "function": {...}}`."""


@dataclass(frozen=True)
class ToolCall:
    """One call found in sampled text."""

    id: str
    """`call_` and 24 hex digits."""
    name: str
    """Name of the function."""
    arguments: str
    """JSON text of an object."""

    @classmethod
    def new(cls, name: str, arguments: str) -> ToolCall:
        """Return a call with an id of its own."""
        return cls(f"call_{uuid.uuid4().hex[:24]}", name, arguments)

    def as_message(self) -> dict[str, Any]:
        """Return it as it stands in an OpenAI assistant message."""
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.arguments}}


TextOrCall: TypeAlias = str | ToolCall
"""A stretch of text that belongs to no call, or a call."""


@dataclass(frozen=True)
class CallShape:
    """The text of one call: literal text, a JSON value that obeys a schema, literal text."""

    before: str
    """Begins with `forced_prefix(name)`; may contain the names of special tokens."""
    schema: Mapping[str, Any]
    """JSON schema of the value in between, the call's arguments."""
    after: str
    """Ends the call."""


class Scanner(Protocol):
    """Splits a growing text into plain text and calls.

    The parts, with neighbouring texts joined, do not depend on how the text was cut up before it was fed. A malformed
    call comes out as the text that it is. White space next to a call is dropped. Work is linear in the text's length.
    """

    def feed(self, text: str) -> list[TextOrCall]:
        """Return the parts that are certain once `text` has been added."""

    def finish(self) -> list[TextOrCall]:
        """Return the rest, when the text has ended."""


class ToolFormat(Protocol):
    """One way of writing calls."""

    @property
    def name(self) -> str:
        """As it is chosen by `tool_format`."""

    @property
    def markers(self) -> Sequence[str]:
        """Texts that must be seen when calls are read, also where the vocabulary has them as special tokens."""

    def section(self, tools: Sequence[Tool]) -> str:
        """Return what tells a model about its tools when its chat template cannot."""

    def format_call(self, name: str, arguments: Any) -> str:
        """Return the text that makes a call; `arguments` is an object, or text to be kept as it is."""

    def format_calls(self, calls: Sequence[tuple[str, Any]]) -> str:
        """Return the text that makes several calls at once, each a name and its arguments."""

    def format_result(self, content: str) -> str:
        """Return the text that hands a tool's result to the model when its chat template cannot."""

    def shape(self, name: str, parameters: Mapping[str, Any]) -> CallShape | None:
        """Return how a call of the tool `name` is written, `parameters` being the schema of its arguments.

        None where arguments are not JSON.
        """

    def forced_prefix(self, name: str | None) -> str:
        """Return the start of an answer that must call the tool `name`, or any tool when None.

        It ends where a tokenizer would start a new token, so that the continuation tokenises as usual.
        """

    def scanner(self, tools: Sequence[Tool] = ()) -> Scanner:
        """Return a new reader of one answer.

        Args:
            tools: the tools that were offered: where a form does not tell text from numbers, their parameters do.
        """


def tools_section(tools: Sequence[Tool], example: str) -> str:
    """Return the tools, one a line, and how a call is written."""
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
    """Return JSON as models know it: a space after commas and colons, no escapes of letters. Text stays as it is."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
