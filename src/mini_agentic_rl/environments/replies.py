"""Strict reading of what a model says: one line "Answer: …" or "Guess: …", with nothing after it.

What stands behind the answer is read by whoever uses the model, so a reward that overlooks it would teach junk.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from ..rewards import in_ascii_numbers, message_text

MAX_ANSWER: Final = 200
"""Characters of an answer."""


def last_line(message: Mapping[str, Any], mark: str = "Answer") -> str | None:
    """Return what follows "Answer: " on the last line of a message.

    None where the message calls a tool, has no such line, has several of them, or goes on behind it.
    """
    if message.get("tool_calls"):
        return None
    text = message_text(message)
    begin = f"{mark}: "
    lines = text.rstrip("\n").split("\n")
    if not lines[-1].startswith(begin) or sum(line.lstrip().startswith(f"{mark}:") for line in lines) > 1:
        return None
    found = lines[-1].removeprefix(begin).strip()
    return found if 0 < len(found) <= MAX_ANSWER else None


_NUMBER: Final = re.compile(r"-?(?:\d{1,3}(?:,\d{3})+|\d{1,15})(?:\.\d{1,12})?", re.ASCII)


def plain(text: str) -> str:
    """Return a number without its thousands commas, anything else in lower case without a full stop at its end."""
    text = " ".join(in_ascii_numbers(text).split())
    if _NUMBER.fullmatch(text):
        return text.replace(",", "")
    return text.casefold().removesuffix(".").rstrip()


def number_of(text: str) -> str | None:
    """Return the number that an answer is, without the unit behind it; None where it is none."""
    text = in_ascii_numbers(text)
    found = _NUMBER.match(text)
    if found is None or not re.fullmatch(r"(?: [^\W\d_]+){0,2}", text[found.end() :]):
        return None
    return found[0].replace(",", "")
