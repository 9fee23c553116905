"""Text of a growing list of token ids, piece by piece, never with half a character in it."""

from __future__ import annotations

from .chat_template import Tokenizer

_HALF = "\N{REPLACEMENT CHARACTER}"


class Detokenizer:
    """Gives out text as soon as it is certain. The pieces joined are the text of all the ids together."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._start = 0
        self._read = 0

    def add(self, token_id: int) -> str:
        """The text that became certain with this token; empty while a character is incomplete."""
        self._ids.append(token_id)
        new = self._new_text()
        if not new or new.endswith(_HALF):
            return ""
        # The tokens given out last stay in view: some tokenizers write a token differently at the start of a text.
        self._start, self._read = self._read, len(self._ids)
        return new

    def finish(self) -> str:
        """Whatever is left; an incomplete character comes out as U+FFFD."""
        new = self._new_text()
        self._start = self._read = len(self._ids)
        return new

    def _new_text(self) -> str:
        known = self._tokenizer.decode(self._ids[self._start : self._read], skip_special_tokens=True)
        return self._tokenizer.decode(self._ids[self._start :], skip_special_tokens=True)[len(known) :]
