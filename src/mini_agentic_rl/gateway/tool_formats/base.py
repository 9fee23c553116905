"""What all tool formats share: the base class, JSON helpers, and the scanner that finds calls in sampled text.

A format writes calls into prompts and reads them out of sampled text. For reading it declares openings: the text that
begins a block, how the block ends, and a function that reads the whole block. The scanner looks at each character of a
block once, so its cost is linear and the result does not depend on how the text was cut up. Reading never raises.
"""

from __future__ import annotations

import json
import re
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from ...http import FINITE, parse_json

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

    def as_message(self) -> dict[str, Any]:
        """Return the call as an entry of `tool_calls` in an OpenAI message."""
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.arguments}}


TextOrCall: TypeAlias = str | ToolCall
"""A stretch of text outside of calls, or a call."""


class ToolFormat(ABC):
    """One way of writing tool calls."""

    name: str
    """The value of `tool_format` that selects it."""
    markers: Sequence[str] = ()
    """Texts that must stay visible for reading, also where the vocabulary has them as special tokens."""

    @abstractmethod
    def section(self, tools: Sequence[Tool]) -> str:
        """Return system text that describes the tools, for chat templates that cannot."""

    @abstractmethod
    def format_calls(self, calls: Sequence[tuple[str, Any]]) -> str:
        """Return the text of several calls, each a name and its arguments: an object, or text that is kept as it is."""

    @abstractmethod
    def format_result(self, content: str) -> str:
        """Return the text of a tool's result, for chat templates without a tool role."""

    @abstractmethod
    def forced_prefix(self, name: str | None) -> str:
        """Return the start of an answer that must call the tool `name`, or any tool if None.

        It ends at a token boundary, so that the continuation is tokenized as usual.
        """

    @abstractmethod
    def scanner(self, tools: Sequence[Tool] = ()) -> CallScanner:
        """Return a new reader of one answer.

        Args:
            tools: the offered tools. Formats without quotes need their parameters to tell text from numbers.
        """

    def format_call(self, name: str, arguments: Any) -> str:
        """Return the text of one call."""
        return self.format_calls([(name, arguments)])

    def shape(self, name: str) -> tuple[str, str] | None:
        """Return the texts before and after the arguments of a call of the tool `name`, for a grammar; None if
        arguments are not JSON. The first begins with `forced_prefix(name)`."""
        return None


def tools_section(tools: Sequence[Tool], example: str) -> str:
    """Return a list of the tools, one per line, followed by an example of a call."""
    lines = ["Tools:"]
    for tool in tools:
        function = tool["function"]
        signature = {key: function[key] for key in ("name", "description") if function.get(key)}
        # Every tool has "type": "object", and mostly additionalProperties: they would only cost tokens.
        dropped = ("type", "additionalProperties", "title")
        parameters = {key: value for key, value in (function.get("parameters") or {}).items() if key not in dropped}
        if parameters.get("properties"):
            signature["parameters"] = parameters
        lines.append(json.dumps(signature, ensure_ascii=False, separators=(",", ":")))
    return "\n".join([*lines, "To use one, write:", example])


def json_text(value: Any) -> str:
    """Return `value` as JSON with a space after commas and colons and without escapes; text is kept as it is."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


_SPACE = re.compile(r"\s*")


def read_json(text: str) -> Any:
    """Return the value of a JSON text; None if it is malformed or `null`."""
    try:
        return FINITE.decode(text)
    except (ValueError, RecursionError):
        return None


def parse_values(text: str, start: int) -> tuple[list[Any], int]:
    """Return the JSON values from `start` on, separated by white space, and the end of the last one."""
    values: list[Any] = []
    end = start
    while start < len(text):
        try:
            value, end = FINITE.raw_decode(text, start)
        except (ValueError, RecursionError):
            break
        values.append(value)
        space = _SPACE.match(text, end)
        start = space.end() if space else end
    return values, end


def make_call(name: Any, arguments: Any) -> ToolCall | None:
    """Return a call; None if the name is not a non-empty text or the arguments are not a JSON object (or its text)."""
    if not isinstance(name, str) or not name:
        return None
    arguments = parse_arguments(arguments)
    if not isinstance(arguments, dict):
        return None
    try:
        name, arguments = parse_json(json.dumps([name, arguments], allow_nan=False))
    except (TypeError, ValueError, RecursionError):  # infinite numbers, or nested too deeply
        return None
    return ToolCall(f"call_{uuid.uuid4().hex[:24]}", name, json.dumps(arguments, ensure_ascii=False))


def calls_of(value: Any, keys: Sequence[str]) -> list[ToolCall]:
    """Return the calls in `{"name": ..., KEY: {...}}` or a list of such objects; none if any of them is malformed.

    Args:
        value: a JSON value.
        keys: allowed names of the arguments. One is required: an object with only a name is data, not a call.
    """
    entries = value if isinstance(value, list) else [value]
    calls = []
    for entry in entries:
        if not isinstance(entry, dict):
            return []
        key = next((key for key in keys if key in entry), None)
        call = None if key is None else make_call(entry.get("name"), entry[key])
        if call is None:
            return []
        calls.append(call)
    return calls


def parse_arguments(arguments: Any) -> Any:
    """Return tool-call arguments as an object; text that is not a JSON object stays text."""
    if arguments is None or arguments == "":
        return {}
    if not isinstance(arguments, str):
        return arguments
    try:
        parsed = parse_json(arguments)
    except ValueError:
        return arguments
    return parsed if isinstance(parsed, dict) else arguments


Block: TypeAlias = Generator[None, str, None]
"""Takes the characters of a block after its opening one by one, and returns after the last of them. It may refuse the
block only near its start, which is read twice."""


class NotACallError(Exception):
    """What has begun is not a block: its text after the opening is searched again."""


def until(end: str) -> Block:
    """Read a block that ends with the text `end`."""
    tail = ""
    while tail != end:
        tail = (tail + (yield))[-len(end) :]


def json_value(heads: Sequence[str] = ()) -> Block:
    """Read one JSON object or list, after its first bracket.

    Args:
        heads: texts that may follow the first bracket, ignoring white space, such as `"name":`; others are refused.
    """
    depth, head, in_string, escaped = 1, "", False, False
    while depth:
        char = yield
        if heads and not char.isspace():
            head += char
            if head in heads:
                heads = ()
            elif not any(allowed.startswith(head) for allowed in heads):
                raise NotACallError
        if escaped:
            escaped = False
        elif in_string:
            escaped, in_string = char == "\\", char != '"'
        elif char == '"':
            in_string = True
        elif char in "{[":
            depth += 1
        elif char in "}]":
            depth -= 1


def marked_json(heads: Mapping[str, Sequence[str]]) -> Block:
    """Read one JSON object or list that follows a marker.

    Args:
        heads: allowed opening brackets and the texts that may follow each.
    """
    while (char := (yield)).isspace():
        pass
    if char not in heads:
        raise NotACallError
    yield from json_value(heads[char])


_SLICE = 512
"""Characters scanned at once: the rest of a slice is copied whenever a block opens or ends."""


@dataclass(frozen=True)
class Opening:
    """The start of a kind of block."""

    text: str
    """Text that opens the block; one character if `at_line_start`."""
    block: Callable[[], Block]
    """Begins to read a block, to find its end."""
    read: Callable[[str], list[TextOrCall]]
    """Splits the text of a block, opening included, into calls and text. The block may be cut off by the end of the
    answer. Text without a call is returned unchanged."""
    at_line_start: bool = False
    """True if it opens a block only at the start of a line or after a call."""


@dataclass
class _OpenBlock:
    opening: Opening
    block: Block
    raw: list[str]
    """Its text so far, in pieces."""


class CallScanner:
    """Split a growing text into plain text and calls.

    The parts, with adjacent texts joined, do not depend on how the text was cut up. A malformed call stays text. White
    space next to a call is dropped.

    Args:
        openings: the texts that begin a call.
        separators: characters between calls, dropped after a call together with white space.
    """

    def __init__(self, openings: Sequence[Opening], separators: str = "") -> None:
        self._openings = {opening.text: opening for opening in openings}
        self._anywhere = [opening.text for opening in openings if not opening.at_line_start]
        in_line = "|".join(re.escape(opening.text) for opening in openings if opening.at_line_start)
        patterns = [re.escape(text) for text in self._anywhere]
        self._line_start = re.compile(rf"[^\S\n]*({in_line})") if in_line else None
        if in_line:
            patterns.append(rf"\n[^\S\n]*(?:{in_line})")
        self._search = re.compile("|".join(patterns))
        self._after_calls = re.compile(rf"[\s{re.escape(separators)}]*")
        self._held = ""
        self._spaces: list[str] = []
        self._fresh = True
        self._after_call = False
        self._open: _OpenBlock | None = None

    def feed(self, text: str) -> list[TextOrCall]:
        """Add text; return the parts that are certain by now."""
        parts: list[TextOrCall] = []
        for start in range(0, len(text), _SLICE):
            rest = text[start : start + _SLICE]
            while rest:
                opened = self._open
                rest = self._read_text(rest, parts) if opened is None else self._read_block(opened, rest, parts)
        return parts

    def finish(self) -> list[TextOrCall]:
        """Return the rest at the end of the text."""
        parts: list[TextOrCall] = []
        if self._open is not None:
            self._close(self._open.opening, "".join(self._open.raw), parts)
        self._emit(self._held, parts)
        self._held = ""
        parts += self._spaces
        self._spaces = []
        return parts

    def _read_text(self, text: str, parts: list[TextOrCall]) -> str:
        text, self._held = self._held + text, ""
        if self._after_call:
            space = self._after_calls.match(text)
            text = text[space.end() :] if space else text
        at, opening = self._find(text)
        if opening is not None:
            self._emit(text[:at], parts)
            self._open = _OpenBlock(opening, opening.block(), [opening.text])
            next(self._open.block)
            return text[at + len(opening.text) :]
        certain = len(text) - max((partial_end(text, marker) for marker in self._anywhere), default=0)
        self._held = text[certain:]
        self._emit(text[:certain], parts)
        return ""

    def _find(self, text: str) -> tuple[int, Opening | None]:
        if self._fresh and self._line_start is not None:
            first = self._line_start.match(text)
            if first:
                return first.start(1), self._openings[first.group(1)]
        match = self._search.search(text)
        if match is None:
            return -1, None
        opening = self._openings[match.group().lstrip()]
        return match.end() - len(opening.text), opening

    def _read_block(self, opened: _OpenBlock, text: str, parts: list[TextOrCall]) -> str:
        at = 0
        try:
            for at, char in enumerate(text, 1):  # noqa: B007  # used when it ends
                opened.block.send(char)
        except StopIteration:  # the block ends with this character
            self._close(opened.opening, "".join(opened.raw) + text[:at], parts)
            return text[at:]
        except NotACallError:
            self._open = None
            self._emit(opened.opening.text, parts)
            return "".join(opened.raw)[len(opened.opening.text) :] + text
        opened.raw.append(text)
        return ""

    def _close(self, opening: Opening, raw: str, parts: list[TextOrCall]) -> None:
        self._open = None
        for part in opening.read(raw):
            if isinstance(part, str):
                self._emit(part, parts)
            else:
                self._spaces = []
                self._after_call = self._fresh = True
                parts.append(part)

    def _emit(self, text: str, parts: list[TextOrCall]) -> None:
        """Emit text, but hold trailing white space until it is known whether a call follows."""
        if self._after_call:
            text = text.lstrip()
        if not text:
            return
        if self._line_start is not None:
            line = text[text.rfind("\n") + 1 :]
            self._fresh = (self._fresh or len(line) < len(text)) and not line.strip()
        kept = text.rstrip()
        if kept:
            self._after_call = False
            parts.append("".join([*self._spaces, kept]) if self._spaces else kept)
            self._spaces = []
        if len(kept) < len(text):
            self._spaces.append(text[len(kept) :])


def partial_end(text: str, marker: str) -> int:
    """Return how many characters at the end of `text` are the beginning of `marker`, but not all of it."""
    tail = text[-(len(marker) - 1) :] if len(marker) > 1 else ""
    at = tail.find(marker[0])
    while at >= 0:
        if marker.startswith(tail[at:]):
            return len(tail) - at
        at = tail.find(marker[0], at + 1)
    return 0


def split_tool_calls(tool_format: ToolFormat, text: str, tools: Sequence[Tool] = ()) -> tuple[str, list[ToolCall]]:
    """Return the text without its calls, and the calls."""
    scanner = tool_format.scanner(tools)
    parts = scanner.feed(text) + scanner.finish()
    content = "".join(part for part in parts if isinstance(part, str))
    return content, [part for part in parts if isinstance(part, ToolCall)]
