"""Foreign text on a terminal: what would steer it is shown instead of obeyed.

A span's name, a model's answer or a file's name may hold escape sequences that move the cursor, rewrite earlier lines,
set the window's title or put text on the clipboard, and marks that turn the direction of writing.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from typing import Final

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from .redaction import without_secrets

_STEERING: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters but tabs and ends of lines, marks of direction, and halves of surrogate pairs."""


def visible(text: str) -> str:
    """Return a text in which every character that would steer a terminal is written as its escape, as in `\\x1b[2J`.

    Tabs and ends of lines are kept.
    """
    if text.isascii() and text.isprintable():
        return text
    return _STEERING.sub(_escaped, text.replace("\r\n", "\n"))


def visible_line(text: str) -> str:
    """Return `visible` text on one line: tabs and ends of lines are escapes too."""
    return visible(text).replace("\n", "\\n").replace("\t", "\\t")


def visible_json(text: str) -> str:
    """Return JSON in which every character that would steer a terminal is an escape of JSON's, so that it stays the
    same value."""
    return _STEERING.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


class VisibleConsole(Console):
    """A console of rich on which foreign text steers nothing: rich's own colours and cursor moves are no text."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(visible(segment.text), segment.style)


class VisibleFormatter(logging.Formatter):
    """A formatter of log records whose lines have no keys, and steer no terminal, also when a file of them is shown."""

    def format(self, record: logging.LogRecord) -> str:
        return visible(without_secrets(super().format(record)))


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape", "surrogatepass").decode("ascii")
