"""Long texts to token ids, a piece at a time.

A tokenizer of Hugging Face takes about 260 bytes for each byte of a text that it is given at once. Its tokens never
reach across the words that it first cuts a text into, so that a long text can be given to it in pieces, each of which
begins where a word of the one before began. The words that two pieces share must have become the same tokens in both.
Where they did not, and where words are long, the pieces grow, up to a bound.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from ...http import BadRequestError

if TYPE_CHECKING:
    from tokenizers import Encoding
    from tokenizers import Tokenizer as Core

PIECE: Final = 64 * 1024
"""Characters that are encoded at once."""
LONGEST: Final = 2_500_000
"""Most bytes of a text that can only be encoded at once: 650 MB of memory. A context of 131,072 tokens lets in less."""
_OVERLAP: Final = 1024
"""Characters, at least, that two pieces share."""
_SHARED_WORDS: Final = 8
"""Whole words, at least, that two pieces share."""
_END: Final = 64
"""Characters at the end of a piece whose tokens the text behind it may change."""


def encode_in_pieces(core: Core, text: str, size: int = PIECE) -> NDArray[np.int32]:
    """Return the token ids of `text`, as `core` gives them without special tokens around it.

    Args:
        core: the tokenizer. It has no post-processor, which may tell other places than those that words begin at.
        text: the text.
        size: characters that are encoded at once.

    Raises:
        BadRequestError: a part of the text can only be encoded at once, and has more than `LONGEST` bytes.
    """
    ids: list[NDArray[np.int32]] = []
    before: list[tuple[int, int, list[int]]] = []  # the pieces so far, to go back to
    start, length = 0, size
    seen: list[int] = []  # what the piece before has made of the text from `start` on
    while True:
        piece = text[start : start + length]
        check_length(piece)
        (encoding,) = core.encode_batch([piece], add_special_tokens=False)  # `encode` would hold up all other threads
        found = encoding.ids
        if found[: len(seen)] != seen:  # the piece before has to see more of the text, or cannot end there
            start, length, seen = before.pop()
            ids.pop()
            length *= 2
            continue
        if start + length >= len(text):
            return np.concatenate([*ids, np.asarray(found, np.int32)])
        cut = _cut(encoding, len(piece))
        if cut is None:
            length *= 2
            continue
        before.append((start, length, seen))
        index, place, sure = cut
        ids.append(np.asarray(found[:index], np.int32))
        seen = found[index:sure]
        start, length = start + place, size


def check_length(text: str) -> None:
    """Check that a text which can only be encoded at once is not too long for it.

    Raises:
        BadRequestError: it is.
    """
    if len(text) <= LONGEST // 4 or len(text.encode("utf-8", "replace")) <= LONGEST:
        return
    raise BadRequestError(
        f"the messages hold a text of more than {LONGEST} bytes that the model's tokenizer does not cut into words, "
        "which is more than is encoded at once. Shorten it, or put spaces or line breaks in it.",
        param="messages",
    )


def _cut(encoding: Encoding, length: int) -> tuple[int, int, int] | None:
    """Return where the next piece begins: the index of a token that begins a word, and its place in the text; and the
    index after the last token that the text behind this piece does not change. None where the words are too long.

    Args:
        encoding: the piece's tokens.
        length: characters of the piece.
    """
    words = encoding.word_ids
    sure, shared = 0, 0
    for index in range(len(words) - 1, 0, -1):
        if words[index] == words[index - 1]:
            continue
        span = encoding.token_to_chars(index)
        if span is None or span[0] > length - _END:
            continue
        place = span[0]
        sure = sure or index
        if index < sure:
            shared += 1
        if shared >= _SHARED_WORDS and place <= length - _OVERLAP:
            return index, place, sure
    return None
