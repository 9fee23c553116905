"""Encode rendered prompts so that content cannot forge turns.

A tokenizer turns the names of special tokens in a rendered prompt into those tokens. A tool result with the text
`<|im_end|>` would end its turn and could begin another one as the system. So these names are marked in all content
before it is rendered, and marked names are encoded as ordinary text. The template sees the rest of the content
unchanged: it may trim it, look for tags in it, and write it as JSON. The marked names are those of special tokens, and
of other added tokens with which the template begins or ends turns.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from ...http import BadRequestError
from ...samplers import ContextLengthError
from .decoding import Tokenizer

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Core

LONGEST: Final = 2_500_000
"""Bytes of the longest rendered text: Hugging Face tokenizers take about 260 bytes of memory for each, 650 MB in all.
Prompts for a context of 131,072 tokens are shorter."""
_SHORT: Final = 64 * 1024
"""Characters of a text that is encoded without releasing the interpreter lock."""


def check_length(text: str) -> None:
    """Raise BadRequestError if a text is too long to be encoded."""
    if len(text) > LONGEST // 4 and len(text.encode("utf-8", "replace")) > LONGEST:
        raise BadRequestError(f"the messages have more than {LONGEST} bytes of text: shorten them", param="messages")


_MARK: Final = "\ufdd0"
"""First character of a mark, a Unicode noncharacter; the second character identifies the name."""
_NAME: Final = "\ufdd1"
"""First character of the private name of a special token."""
_FIRST: Final = 0x100000
_MARKER = re.compile(r"[\W_].+[\W_]", re.DOTALL)
"""A name like `<|user|>`, not a word."""
_REPLACED: Final = {ord(_MARK): "\ufffd", ord(_NAME): "\ufffd"}
# JSON or Python source may have the mark as an escape.
_MARKED = re.compile(
    f"{_MARK}(.)" + r"|\\ufdd0(?:\\udb(?P<high>[c-f]\w)\\u(?P<low>d[c-f]\w\w)|\\U(?P<long>\w{8}))", re.DOTALL
)


class Content:
    """Marks names of special tokens in content, and encodes rendered text with marks.

    Args:
        tokenizer: the tokenizer.
        turns: text of the chat template around content: added tokens in it are marked though they are not special.
        tags: think tags, which are not marked in assistant messages.
    """

    def __init__(self, tokenizer: Tokenizer, turns: str, tags: Collection[str] = ()) -> None:
        self._tokenizer = tokenizer
        self._lock = threading.Lock()
        self._plain: PlainTokenizer | None = None
        added = [token for token in tokenizer.added_tokens_decoder.values() if token.content.strip()]
        names = {token.content for token in added if token.special}
        names |= {
            token.content for token in added if token.content in turns and _MARKER.fullmatch(token.content)
        } - set(tags)
        if tokenizer.eos_token:
            names.add(tokenizer.eos_token)
        self._names = sorted(names)
        self._places = {name: index for index, name in enumerate(self._names)}
        self._all = _Finder(self._names)
        self._but_tags = _Finder([name for name in self._names if name not in tags])
        core = getattr(tokenizer, "backend_tokenizer", None)
        # If names are matched in normalized text, content may become a name by normalization.
        self._always = getattr(core, "normalizer", None) is not None and any(
            token.normalized for token in added if token.content in names
        )

    def mark(self, text: str) -> str:
        """Return content with names marked."""
        return self._marked(text, self._all)

    def mark_all(self, value: Any) -> Any:
        """Return a JSON value with names marked in all texts, also in names of fields."""
        if isinstance(value, str):
            return self.mark(value)
        if isinstance(value, Mapping):
            return {self.mark(str(name)): self.mark_all(item) for name, item in value.items()}
        return [self.mark_all(item) for item in value] if isinstance(value, list | tuple) else value

    def mark_message(self, message: dict[str, Any]) -> dict[str, Any]:
        """Return a plain message with names marked, itself if there are none. Think tags of assistant messages are not
        marked."""
        finder = self._but_tags if message["role"] == "assistant" else self._all
        rest = {name: self.mark_all(value) for name, value in message.items() if name not in ("role", "content")}
        marked = {"role": message["role"], "content": self._marked(message["content"], finder), **rest}
        return message if all(marked[name] is value for name, value in message.items()) else marked

    def encode(self, text: str, most: int | None = None) -> list[int]:
        """Return the token ids of rendered text. Names of special tokens become those tokens unless they are marked.

        Raises:
            BadRequestError: the text is too long to be encoded.
            ContextLengthError: there are more than `most` ids.
        """
        ids = self._ids(text)
        if most is not None and len(ids) > most:
            raise ContextLengthError(len(ids), most)
        return ids if isinstance(ids, list) else ids.tolist()

    def count(self, text: str) -> int:
        """Return the number of ids of `encode`, with 4 bytes of memory each."""
        return len(self._ids(text))

    def _ids(self, text: str) -> list[int] | NDArray[np.int32]:
        if not self._always and len(text) <= _SHORT and _MARKED.search(text) is None:
            return list(self._tokenizer.encode(text, add_special_tokens=False))
        core = getattr(self._tokenizer, "backend_tokenizer", None)
        if core is None:
            return self._in_halves(text)
        with self._lock:
            self._plain = self._plain or PlainTokenizer(core, self._names)
        ids = self._plain.encode(self._pieces(text))
        return self._in_halves(text) if ids is None else ids

    def _marked(self, text: str, finder: _Finder) -> str:
        if _MARK in text or _NAME in text:
            text = text.translate(_REPLACED)
        return finder.replace(text, lambda name: _MARK + chr(_FIRST + self._places[name]))

    def _pieces(self, text: str) -> Iterator[tuple[str, bool]]:
        """Yield the text in pieces, each with True if it is a marked name."""
        start = 0
        for match in _MARKED.finditer(text):
            yield text[start : match.start()], False
            yield self._names[_index(match)], True
            start = match.end()
        yield text[start:], False

    def _in_halves(self, text: str) -> list[int]:
        """Encode with a tokenizer that cannot be copied: each marked name is encoded in two halves."""
        parts = [""]
        for piece, marked in self._pieces(text):
            if marked:
                parts[-1] += piece[:1]
                parts.append(piece[1:])
            else:
                parts[-1] += piece
        ids: list[int] = []
        for part in parts:
            check_length(part)
            ids += self._tokenizer.encode(part, add_special_tokens=False)
        return ids


class PlainTokenizer:
    """A copy of a tokenizer in which special tokens have private names, so that their usual names are ordinary text.

    Args:
        core: the tokenizer.
        names: names of the tokens that get private names.
    """

    def __init__(self, core: Core, names: Sequence[str]) -> None:
        from tokenizers import AddedToken, Tokenizer  # the owner of the tokenizer has imported it

        self._names = _Finder(names)
        self._private = {name: _NAME + chr(_FIRST + index) for index, name in enumerate(names)}
        # The model, which takes most of the memory, is shared and never changed.
        self._core = Tokenizer(core.model)
        for part in ("normalizer", "pre_tokenizer"):
            if getattr(core, part) is not None:
                setattr(self._core, part, getattr(core, part))
        added = core.get_added_tokens_decoder()
        contents = {}
        for token_id, token in sorted(added.items()):
            contents[token_id] = self._private.get(token.content, token.content)
            renamed = AddedToken(
                contents[token_id],
                single_word=token.single_word,
                lstrip=token.lstrip,
                rstrip=token.rstrip,
                normalized=token.normalized,
            )
            (self._core.add_special_tokens if token.special else self._core.add_tokens)([renamed])
        ids = {self._core.token_to_id(content): token_id for token_id, content in contents.items()}
        self._moved = {copied: token_id for copied, token_id in ids.items() if copied != token_id}
        """Ids of added tokens by their ids in the copy, where they differ."""
        self._named = [token_id for token_id, token in added.items() if token.content in self._private]

    def encode(self, pieces: Iterable[tuple[str, bool]]) -> NDArray[np.int32] | None:
        """Return the token ids of the pieces of a text; marked pieces have no special tokens. None if the model itself
        produces such a token from the letters.

        Raises:
            BadRequestError: the text is too long to be encoded.
        """
        text = "".join(
            piece if marked else self._names.replace(piece, self._private.__getitem__) for piece, marked in pieces
        )
        check_length(text)
        (encoding,) = self._core.encode_batch([text], add_special_tokens=False)  # `encode` keeps the interpreter lock
        copied_ids = np.asarray(encoding.ids, np.int32)
        ids = copied_ids.copy() if self._moved else copied_ids
        for copied, token_id in self._moved.items():
            ids[copied_ids == copied] = token_id
        written = np.isin(ids, self._named).sum()
        return ids if written <= text.count(_NAME) else None


class _Finder:
    """Finds names in text, the longest of several at one position."""

    def __init__(self, names: Collection[str]) -> None:
        self._starts = sorted({name[:2] for name in names})
        self._pattern = re.compile(_pattern_of(_trie(names))) if names else None

    def replace(self, text: str, by: Any) -> str:
        """Return the text with each name replaced by `by(name)`."""
        if self._pattern is None or not any(start in text for start in self._starts):
            return text
        return self._pattern.sub(lambda match: by(match.group()), text)


def _trie(names: Collection[str]) -> dict[str, Any]:
    root: dict[str, Any] = {}
    for name in names:
        node = root
        for character in name:
            node = node.setdefault(character, {})
        node[""] = {}
    return root


def _pattern_of(node: dict[str, Any]) -> str:
    """Return a pattern for the names below a node of a trie, whose cost does not depend on their number."""
    branches = [re.escape(character) + _pattern_of(child) for character, child in sorted(node.items()) if character]
    if not branches:
        return ""
    joined = branches[0] if len(branches) == 1 and "" not in node else f"(?:{'|'.join(branches)})"
    return f"{joined}?" if "" in node else joined


def _index(match: re.Match[str]) -> int:
    if match["long"]:
        return int(match["long"], 16) - _FIRST
    if match["high"]:
        pair = bytes.fromhex(f"db{match['high']}{match['low']}")
        return ord(pair.decode("utf-16-be")) - _FIRST
    return ord(match.group(1)) - _FIRST
