"""A streamed reply as a person reads it: no words of a chat template, and calls that cannot be read told as such.

The endpoint hands out a call that it cannot read as the text that it is, and a model may begin to write what only its
template writes: the result of a tool, or the end of one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from ..rewards import TEMPLATE_TAG

_BLOCKS: Final = {
    "<tool_call>": ("</tool_call>", "→ a tool call that cannot be read: "),
    "<tool_response>": ("</tool_response>", "← a result that the model made up: "),
}
"""Opening tags of what a person reads on a line of its own: the closing tag, and the words before it."""
_BEGUN: Final = re.compile(r"(?:<[^<>\n]{0,42}|\[/?[A-Z_]{0,20})\Z")
"""Text that may be the beginning of a tag."""
_CUT: Final = re.compile(r"(?:<\|[^<>\n]*|</?(?:tool|think|answer)\w*)\Z")
"""A tag whose end is missing, because the reply was as long as it may be."""


@dataclass(frozen=True)
class Said:
    """A part of a reply."""

    text: str
    is_aside: bool = False
    """True for a line about what the model wrote, in place of it."""


class ReplyText:
    """Takes the text of one reply piece by piece; gives out what can be shown."""

    def __init__(self) -> None:
        self._held = ""
        self._spaces = ""
        self._block = ""
        self._has_begun = False
        self._drops_spaces = False

    def feed(self, text: str) -> list[Said]:
        """Return the parts that are certain once `text` has been added."""
        self._held += text
        parts: list[Said] = []
        while self._read(parts):
            pass
        return parts

    def finish(self) -> list[Said]:
        """Return the rest, when the reply has ended. White space at its end is dropped."""
        parts: list[Said] = []
        held, self._held = self._held, ""
        if self._block:
            self._tell(held, parts)
        else:
            self._say(_CUT.sub("", held), parts)
        return parts

    def _read(self, parts: list[Said]) -> bool:
        """Read up to the end of the next tag or block; return False when that is still to come."""
        if self._block:
            inside, closed, rest = self._held.partition(_BLOCKS[self._block][0])
            if closed:
                self._held = rest
                self._tell(inside, parts)
            return bool(closed)
        found = TEMPLATE_TAG.search(self._held)
        if found is None:
            begun = _BEGUN.search(self._held)
            end = begun.start() if begun else len(self._held)
            said, self._held = self._held[:end], self._held[end:]
            self._say(said, parts)
            return False
        self._say(self._held[: found.start()], parts)
        self._held = self._held[found.end() :]
        if found[0] in _BLOCKS:
            self._block = found[0]
        else:
            self._drops_spaces = bool(self._spaces)  # those before the tag stay
        return True

    def _say(self, text: str, parts: list[Said]) -> None:
        if self._drops_spaces or not self._has_begun:
            text = text.lstrip()
        kept = text.rstrip()
        if kept:
            parts.append(Said(self._spaces + kept))
            self._has_begun, self._drops_spaces, self._spaces = True, False, ""
        self._spaces += text[len(kept) :]

    def _tell(self, inside: str, parts: list[Said]) -> None:
        words, self._block = _BLOCKS[self._block][1], ""
        self._spaces, self._has_begun = "", False
        parts.append(Said(words + " ".join(TEMPLATE_TAG.sub(" ", inside).split()), is_aside=True))


def words_of_reply(text: str) -> str:
    """Return a whole reply without the template's words and asides."""
    reader = ReplyText()
    return "".join(part.text for part in reader.feed(text) + reader.finish() if not part.is_aside)
