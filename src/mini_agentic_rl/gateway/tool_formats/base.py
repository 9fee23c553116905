"""The protocol of a tool format, and the scanner that all formats share.

A format writes calls into prompts and reads them out of sampled text. It says where its blocks open, where each ends,
and what it holds. A block is read once, character by character, so that the parts cannot depend on how the text
arrives and the work is linear. Whatever a model may have written, reading it gives calls or text; it never raises.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol, TypeAlias

from ...http import parse_json

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


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)
_SPACE = re.compile(r"\s*")


def read_json(text: str) -> Any:
    """Return the value of a JSON text; None when it is none, or says only `null`."""
    try:
        return _DECODER.decode(text)
    except (ValueError, RecursionError):
        return None


def parse_values(text: str, start: int) -> tuple[list[Any], int]:
    """Return the JSON values that stand in a row from `start`, white space between them, and the end of the last."""
    values: list[Any] = []
    end = start
    while start < len(text):
        try:
            value, end = _DECODER.raw_decode(text, start)
        except (ValueError, RecursionError):
            break
        values.append(value)
        space = _SPACE.match(text, end)
        start = space.end() if space else end
    return values, end


def make_call(name: Any, arguments: Any) -> ToolCall | None:
    """Return a call; None when the name is no name or the arguments are no JSON object (or the text of one)."""
    if not isinstance(name, str) or not name:
        return None
    arguments = parse_arguments(arguments)
    if not isinstance(arguments, dict):
        return None
    try:
        name, arguments = parse_json(json.dumps([name, arguments], allow_nan=False))
    except (TypeError, ValueError, RecursionError):  # infinite numbers, or nested too deeply
        return None
    return ToolCall.new(name, json.dumps(arguments, ensure_ascii=False))


def calls_of(value: Any, keys: Sequence[str]) -> list[ToolCall]:
    """Return the calls in `{"name": ..., KEY: {...}}` or a list of such objects; none when any of them is malformed.

    Args:
        value: a JSON value.
        keys: names that the arguments may go by. One of them has to be there: an object that merely has a name is data.
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
    """Return tool-call arguments as an object; text that is no JSON object stays text."""
    if arguments is None or arguments == "":
        return {}
    if not isinstance(arguments, str):
        return arguments
    try:
        parsed = parse_json(arguments)
    except ValueError:
        return arguments
    return parsed if isinstance(parsed, dict) else arguments


class JsonValue:
    """A block that is one JSON object or list, from after its first bracket.

    Args:
        heads: what may follow the first bracket, white space left out, such as `"name":`; anything else is refused.
    """

    def __init__(self, heads: Sequence[str]) -> None:
        self._heads = heads
        self._head = ""
        self._depth = 1
        self._in_string = False
        self._escaped = False

    def step(self, char: str) -> Step:
        """Take the next character."""
        if self._heads and not char.isspace():
            self._head += char
            if self._head in self._heads:
                self._heads = ()
            elif not any(head.startswith(self._head) for head in self._heads):
                return Step.REFUSE
        if self._in_string:
            if self._escaped:
                self._escaped = False
            elif char == "\\":
                self._escaped = True
            elif char == '"':
                self._in_string = False
        elif char == '"':
            self._in_string = True
        elif char in "{[":
            self._depth += 1
        elif char in "}]":
            self._depth -= 1
        return Step.ON if self._depth else Step.END


class MarkedJson:
    """A block that is one JSON object or list, from after a mark that stands before it.

    Args:
        heads: what each kind of bracket may be followed by; a bracket that is no key is refused.
    """

    def __init__(self, heads: Mapping[str, Sequence[str]]) -> None:
        self._heads = heads
        self._value: JsonValue | None = None

    def step(self, char: str) -> Step:
        """Take the next character."""
        if self._value is not None:
            return self._value.step(char)
        if char in self._heads:
            self._value = JsonValue(self._heads[char])
            return Step.ON
        return Step.ON if char.isspace() else Step.REFUSE


_SLICE = 512
"""Characters looked at together: what is left of a slice is copied whenever a block opens or ends."""


class Step(Enum):
    """Effect of a character on the block that it belongs to."""

    ON = "the block goes on"
    END = "the block ends with this character"
    REFUSE = "this is no block; its text after the opening is to be searched again"


class CallBlock(Protocol):
    """Finds the end of a block."""

    def step(self, char: str) -> Step:
        """Take the next character after the opening. A block refuses only near its beginning: that is read twice."""


class Until:
    """A block that ends with a certain text.

    Args:
        end: the text.
    """

    def __init__(self, end: str) -> None:
        self._end = end
        self._tail = ""

    def step(self, char: str) -> Step:
        """Take the next character."""
        self._tail = (self._tail + char)[-len(self._end) :]
        return Step.END if self._tail == self._end else Step.ON


@dataclass(frozen=True)
class Opening:
    """The beginning of blocks of one kind."""

    text: str
    """Text that opens it; one character when `at_line_start`."""
    block: Callable[[], CallBlock]
    """Makes the block that follows."""
    read: Callable[[str], list[TextOrCall]]
    """The parts in a whole block's text, the opening included; also asked of a block that the end of the text cut off.
    Text that holds no call is given back as it is."""
    at_line_start: bool = False
    """True if it opens a block only as the first thing in a line (or after a call)."""


@dataclass
class _Open:
    """A block that has not ended yet, and its text so far in parts."""

    opening: Opening
    block: CallBlock
    raw: list[str]


class CallScanner:
    """A `Scanner` by means of openings.

    Args:
        openings: where calls may begin.
        separators: characters between calls, dropped after a call together with white space.
    """

    def __init__(self, openings: Sequence[Opening], separators: str = "") -> None:
        self._openings = {opening.text: opening for opening in openings}
        anywhere = [opening.text for opening in openings if not opening.at_line_start]
        in_line = "|".join(re.escape(opening.text) for opening in openings if opening.at_line_start)
        patterns = [re.escape(text) for text in anywhere]
        self._line_start = re.compile(rf"[^\S\n]*({in_line})") if in_line else None
        if in_line:
            patterns.append(rf"\n[^\S\n]*(?:{in_line})")
        self._search = re.compile("|".join(patterns))
        self._longest = max((len(text) for text in anywhere), default=1) - 1
        self._beginning = re.compile("|".join(rf"{_beginning(text)}\Z" for text in anywhere) or r"(?!)")
        self._after_calls = re.compile(rf"[\s{re.escape(separators)}]*")
        self._held = ""
        self._spaces: list[str] = []
        self._fresh = True
        self._after_call = False
        self._open: _Open | None = None

    def feed(self, text: str) -> list[TextOrCall]:
        """Return the parts that are certain once `text` has been added."""
        parts: list[TextOrCall] = []
        for start in range(0, len(text), _SLICE):
            rest = text[start : start + _SLICE]
            while rest:
                opened = self._open
                rest = self._read_text(rest, parts) if opened is None else self._read_block(opened, rest, parts)
        return parts

    def finish(self) -> list[TextOrCall]:
        """Return the rest, when the text has ended."""
        parts: list[TextOrCall] = []
        if self._open is not None:
            self._close(self._open.opening, "".join(self._open.raw), parts)
        self._say(self._held, parts)
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
            self._say(text[:at], parts)
            self._open = _Open(opening, opening.block(), [opening.text])
            return text[at + len(opening.text) :]
        begun = self._beginning.search(text, max(0, len(text) - self._longest))
        if begun is None:
            self._say(text, parts)
        else:
            self._held = text[begun.start() :]
            self._say(text[: begun.start()], parts)
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

    def _read_block(self, opened: _Open, text: str, parts: list[TextOrCall]) -> str:
        for index, char in enumerate(text):
            step = opened.block.step(char)
            if step is Step.ON:
                continue
            raw = "".join(opened.raw) + text[: index + 1]
            rest = text[index + 1 :]
            if step is Step.END:
                self._close(opened.opening, raw, parts)
                return rest
            self._open = None
            self._say(opened.opening.text, parts)
            return raw[len(opened.opening.text) :] + rest
        opened.raw.append(text)
        return ""

    def _close(self, opening: Opening, raw: str, parts: list[TextOrCall]) -> None:
        self._open = None
        for part in opening.read(raw):
            if isinstance(part, str):
                self._say(part, parts)
            else:
                self._spaces = []
                self._after_call = self._fresh = True
                parts.append(part)

    def _say(self, text: str, parts: list[TextOrCall]) -> None:
        """Give text out, but keep white space at its end until it is known whether a call follows."""
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


def _beginning(text: str) -> str:
    """Return a pattern of what may be the beginning of `text`, but not all of it."""
    pattern = ""
    for char in reversed(text[:-1]):
        pattern = re.escape(char) + (f"(?:{pattern})?" if pattern else "")
    return pattern


def split_tool_calls(tool_format: ToolFormat, text: str, tools: Sequence[Tool] = ()) -> tuple[str, list[ToolCall]]:
    """Read a whole text; return what is left without its calls, and the calls."""
    scanner = tool_format.scanner(tools)
    parts = scanner.feed(text) + scanner.finish()
    content = "".join(part for part in parts if isinstance(part, str))
    return content, [part for part in parts if isinstance(part, ToolCall)]
