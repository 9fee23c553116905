"""Untrusted text on a terminal: control characters are shown as escapes.

A span's name, a model's answer or a file's name may contain escape sequences that move the cursor, rewrite earlier
lines, set the window's title or write to the clipboard, and marks that change the direction of writing.
"""

from __future__ import annotations

import logging
import re
import shlex
import sys
from collections.abc import Iterable
from typing import Any, Final

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from .redaction import without_secrets

_CONTROL: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters except tab and newline, direction marks, and lone surrogates."""

_WINDOWS_WORD: Final = re.compile(r"[\w.:/\\~+-]+")
"""Arguments that no shell of Windows changes."""


def visible(text: str) -> str:
    """Return a text with every control character except tab and newline written as its escape, as in `\\x1b[2J`."""
    if text.isascii() and text.isprintable():
        return text
    escape = lambda match: match[0].encode("unicode_escape", "surrogatepass").decode("ascii")  # noqa: E731
    return _CONTROL.sub(escape, text.replace("\r\n", "\n"))


def visible_line(text: str) -> str:
    """Return `visible` text on one line: tab and newline are escapes too."""
    return visible(text).replace("\n", "\\n").replace("\t", "\\t")


def visible_argument(value: object) -> str:
    """Return a value, such as a path, as an argument of a command line that is printed for the user to type."""
    text = visible_line(str(value))
    if sys.platform == "win32":
        # cmd and PowerShell both know double quotes, and take a backslash as it is; to cmd single quotes are text.
        return text if _WINDOWS_WORD.fullmatch(text) else f'"{text}"'
    return shlex.quote(text)


def visible_json(text: str) -> str:
    """Return JSON text with every control character written as a JSON escape; its value stays the same."""
    return _CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


class VisibleConsole(Console):
    """A rich console that shows control characters in text as escapes; rich's own colours and cursor moves work.

    Strings are printed as they are: markup, names of emoji and highlighting are off unless the options turn them on.
    """

    def __init__(self, **options: Any) -> None:
        plain: dict[str, Any] = {"markup": False, "emoji": False, "highlight": False}
        super().__init__(**(plain | options))

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(visible(segment.text), segment.style)


class VisibleFormatter(logging.Formatter):
    """A log formatter that redacts keys and shows control characters as escapes, in files too."""

    def format(self, record: logging.LogRecord) -> str:
        return visible(without_secrets(super().format(record)))
