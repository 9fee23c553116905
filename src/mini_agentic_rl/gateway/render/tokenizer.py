"""Tokens and text: what is used of a tokenizer, and the text of growing ids, never with half a character in it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, Protocol, get_args

from ..tool_formats import ToolFormatName


class Tokenizer(Protocol):
    """The part of a Hugging Face tokenizer that the gateway uses."""

    name_or_path: str
    chat_template: Any
    init_kwargs: dict[str, Any]
    eos_token: str | None
    eos_token_id: int | None

    @property
    def added_tokens_decoder(self) -> Mapping[int, Any]: ...
    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...
    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str: ...
    def __len__(self) -> int: ...
    def get_added_vocab(self) -> dict[str, int]: ...
    def apply_chat_template(
        self,
        conversation: list[dict[str, Any]],
        *,
        tools: list[Any] | None,
        chat_template: str,
        add_generation_prompt: bool,
        tokenize: bool,
    ) -> Any: ...


_TOOL_FORMAT: Final = "tool_format"
"""Key in the configuration of a tokenizer, which its files keep."""


def keep_tool_format(tokenizer: Tokenizer, name: ToolFormatName) -> None:
    """Let a tokenizer, and the files that it is saved in, say how a model was taught to write its calls."""
    tokenizer.init_kwargs[_TOOL_FORMAT] = name


def kept_tool_format(tokenizer: Tokenizer) -> ToolFormatName:
    """Return the format that a tokenizer was saved with; `auto` where it says none."""
    name: Any = tokenizer.init_kwargs.get(_TOOL_FORMAT)
    found: ToolFormatName = name if name in get_args(ToolFormatName) else "auto"
    return found


def special_tokens(tokenizer: Tokenizer) -> dict[str, int]:
    """Return text and id of the tokens that `decode(skip_special_tokens=True)` leaves out."""
    return {token.content: id_ for id_, token in tokenizer.added_tokens_decoder.items() if token.special}


def end_tokens(tokenizer: Tokenizer) -> dict[str, int]:
    """Return text and id of the tokens that may end a turn: those added to the vocabulary, and the EOS token."""
    known = dict(tokenizer.get_added_vocab())
    if tokenizer.eos_token and tokenizer.eos_token_id is not None:
        known[tokenizer.eos_token] = tokenizer.eos_token_id
    return known


def chat_template_of(tokenizer: Tokenizer) -> str:
    """Return its chat template, the default one of several; ChatML where it has none."""
    template = tokenizer.chat_template
    if isinstance(template, Mapping):
        template = template.get("default") or next(iter(template.values()), None)
    if template:
        return str(template)
    end = "<|im_end|>" if "<|im_end|>" in tokenizer.get_added_vocab() else tokenizer.eos_token or "<|im_end|>"
    return (
        "{% for message in messages %}"
        "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + END + '\\n' }}"
        "{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
    ).replace("END", repr(end))


_HALF = "\N{REPLACEMENT CHARACTER}"


class Decoder:
    """Ids to text. Special tokens make no text, but for those that are to be seen.

    Args:
        tokenizer: the tokenizer.
        shown: texts that stay to be seen where the vocabulary has them as special tokens.
    """

    def __init__(self, tokenizer: Tokenizer, shown: Collection[str] = ()) -> None:
        self._tokenizer = tokenizer
        special = special_tokens(tokenizer) if shown else {}
        hidden = frozenset(id_ for text, id_ in special.items() if text not in shown)
        self._hidden = hidden if len(hidden) < len(special) else None
        self._single: dict[int, str] = {}
        """Texts of single tokens: streams ask for them again and again. At most one for each id of the vocabulary."""

    def __call__(self, token_ids: Sequence[int]) -> str:
        """Return the text of `token_ids`."""
        if len(token_ids) != 1:
            return self._decode(token_ids)
        (token_id,) = token_ids
        text = self._single.get(token_id)
        if text is None:
            text = self._single[token_id] = self._decode(token_ids)
        return text

    def _decode(self, token_ids: Sequence[int]) -> str:
        if self._hidden is None:
            return self._tokenizer.decode(token_ids, skip_special_tokens=True)
        seen = [id_ for id_ in token_ids if id_ not in self._hidden]
        return self._tokenizer.decode(seen, skip_special_tokens=False)


class Detokenizer:
    """Gives out text as soon as it is certain. The parts joined are the text of all the ids together."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._ids: list[int] = []
        self._start = 0
        self._read = 0

    def add(self, *token_ids: int) -> str:
        """Add tokens; return the text that became certain with them, empty while a character is incomplete."""
        self._ids += token_ids
        new = self._new_text()
        if not new or new.endswith(_HALF):
            return ""
        # What was given out last stays in view: some tokenizers write a token differently at the start of a text. One
        # token is enough, if it makes text by itself.
        last = self._decoder(self._ids[-1:])
        self._start = len(self._ids) - 1 if last and _HALF not in last else self._read
        self._read = len(self._ids)
        return new

    def finish(self) -> str:
        """Return whatever is left; an incomplete character comes out as U+FFFD."""
        new = self._new_text()
        self._start = self._read = len(self._ids)
        return new

    def _new_text(self) -> str:
        known = self._decoder(self._ids[self._start : self._read])
        return self._decoder(self._ids[self._start :])[len(known) :]
