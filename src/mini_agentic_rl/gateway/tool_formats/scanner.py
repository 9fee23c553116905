"""The scanner that all tool formats share: text, in which blocks open that may turn out to be calls.

A format says where its blocks open, where each ends, and what it holds. A block is read once, character by character,
so the parts cannot depend on how the text arrives and the work is linear.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from .base import TextOrCall, Tool, ToolCall, ToolFormat

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
            found = self._after_calls.match(text)
            text = text[found.end() :] if found else text
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
        found = self._search.search(text)
        if found is None:
            return -1, None
        opening = self._openings[found.group().lstrip()]
        return found.end() - len(opening.text), opening

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
