"""From token ids to text, and from the text of an answer to its thought, content and tool calls.

Decoded text never ends inside a character. A thought is the text between think tags before an answer.

With the policies `keep`, `drop` and `fork` a thought is separated from the content, as `reasoning_content`; clients may
send it back or not. The policies differ in the earlier thoughts that the model sees:

- `keep`: all. A conversation always continues from its recorded ids with the thoughts, even if the chat template would
  remove them. (Unrecorded history is rendered by the template.)
- `drop`: none. The history is rendered without thoughts, so each turn after a thought forks.
- `fork`: as the chat template does it. If it keeps the thoughts, the conversation continues; if it rewrites history,
  the token tree forks. Many templates keep thoughts within a tool loop and remove them at the next question.
- `off`: think tags are ordinary text.
- `auto`: `fork` if the template or the vocabulary has think tags, otherwise `off`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final, Literal, Protocol, TypeAlias, get_args

from ..tool_formats import CallScanner, ToolCall, ToolFormatName, partial_end


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
"""Key in the configuration of a tokenizer, which is saved with it."""


def keep_tool_format(tokenizer: Tokenizer, name: ToolFormatName) -> None:
    """Store the tool format that a model was trained with in the configuration of its tokenizer."""
    tokenizer.init_kwargs[_TOOL_FORMAT] = name


def kept_tool_format(tokenizer: Tokenizer) -> ToolFormatName:
    """Return the tool format in the configuration of a tokenizer; `auto` if there is none."""
    name: Any = tokenizer.init_kwargs.get(_TOOL_FORMAT)
    tool_format: ToolFormatName = name if name in get_args(ToolFormatName) else "auto"
    return tool_format


def special_tokens(tokenizer: Tokenizer) -> dict[str, int]:
    """Return the ids of special tokens by their texts."""
    return {token.content: id_ for id_, token in tokenizer.added_tokens_decoder.items() if token.special}


def chat_template_of(tokenizer: Tokenizer) -> str:
    """Return the chat template of a tokenizer, the default one of several; ChatML if it has none."""
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
    """Turns ids into text without special tokens.

    Args:
        tokenizer: the tokenizer.
        shown: texts of special tokens that stay visible.
    """

    def __init__(self, tokenizer: Tokenizer, shown: Collection[str] = ()) -> None:
        self._tokenizer = tokenizer
        special = special_tokens(tokenizer) if shown else {}
        hidden = frozenset(id_ for text, id_ in special.items() if text not in shown)
        self._hidden = hidden if len(hidden) < len(special) else None
        self._single: dict[int, str] = {}
        """Cache of the texts of single tokens, for streams; at most one entry per id."""

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
    """Returns text as soon as it is certain. The joined parts are the text of all ids."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._ids: list[int] = []
        self._start = 0
        self._read = 0

    def add(self, *token_ids: int) -> str:
        """Add tokens; return the new text, empty while a character is incomplete."""
        self._ids += token_ids
        new = self._new_text()
        if not new or new.endswith(_HALF):
            return ""
        # Keep the last token as context: some tokenizers decode a token differently at the start of a text. One token
        # is enough if it has text by itself.
        last = self._decoder(self._ids[-1:])
        self._start = len(self._ids) - 1 if last and _HALF not in last else self._read
        self._read = len(self._ids)
        return new

    def finish(self) -> str:
        """Return the rest; an incomplete character becomes U+FFFD."""
        new = self._new_text()
        self._start = self._read = len(self._ids)
        return new

    def _new_text(self) -> str:
        known = self._decoder(self._ids[self._start : self._read])
        return self._decoder(self._ids[self._start :])[len(known) :]


ThinkingName = Literal["auto", "keep", "drop", "fork", "off"]


@dataclass(frozen=True)
class ThinkTags:
    """The texts before and after a thought."""

    open: str
    close: str


@dataclass(frozen=True)
class Thought:
    """A stretch of thinking in an answer."""

    text: str


KNOWN_TAGS: Final = (ThinkTags("<think>", "</think>"), ThinkTags("[THINK]", "[/THINK]"))
"""The tags of models; the first ones are the default."""
ALL_TAGS: Final = frozenset(text for tags in KNOWN_TAGS for text in (tags.open, tags.close))
"""The texts of all known think tags."""


class _State(Enum):
    BEFORE = auto()
    """Only white space, or a part of the opening tag, has arrived."""
    INSIDE = auto()
    AFTER = auto()


class ThoughtScanner:
    """Splits a growing answer into the thought at its beginning and the rest.

    White space around the tags is dropped. The joined parts do not depend on how the text was cut up.

    Args:
        tags: the think tags.
        begun: True if the prompt opens the thought.
    """

    def __init__(self, tags: ThinkTags, begun: bool = False) -> None:
        self._tags = tags
        self._begun = begun
        self._state = _State.BEFORE
        self._spaces: list[str] = []
        self._held = ""
        self._at_start = False
        self.found = begun
        """True if there is a thought, which may be empty."""

    def feed(self, text: str) -> list[Thought | str]:
        """Add text; return the parts that are certain by now."""
        parts: list[Thought | str] = []
        if self._state is _State.BEFORE:
            text = self._read_before(text)
        if self._state is _State.INSIDE:
            text = self._read_thought(text, parts)
        if self._state is _State.AFTER and text:
            self._emit(text, parts)
        return parts

    def finish(self) -> list[Thought | str]:
        """Return the rest. A thought need not be closed."""
        parts: list[Thought | str] = []
        if self._state is _State.INSIDE or (self._state is _State.BEFORE and self._begun):
            self._think(self._held, parts)
        else:
            rest = "".join(self._spaces) + self._held
            if rest:
                parts.append(rest)
        self._held, self._spaces = "", []
        return parts

    def _read_before(self, text: str) -> str:
        """Return the rest of `text` once the beginning of the answer is known."""
        if not self._held:
            stripped = text.lstrip()
            self._spaces.append(text[: len(text) - len(stripped)])
            text = stripped
        text, self._held = self._held + text, ""
        opening = self._tags.open
        if text.startswith(opening):
            self._state, self.found = _State.INSIDE, True
            self._spaces, self._at_start = [], True
            return text[len(opening) :]
        if opening.startswith(text):
            self._held = text
            return ""
        self._state = _State.INSIDE if self._begun else _State.AFTER
        if self._begun:
            self._spaces, self._at_start = [], True
            return text
        text = "".join(self._spaces) + text
        self._spaces = []
        return text

    def _read_thought(self, text: str, parts: list[Thought | str]) -> str:
        text, self._held = self._held + text, ""
        close = self._tags.close
        at = text.find(close)
        if at < 0:
            certain = len(text) - partial_end(text, close)
            self._held = text[certain:]
            self._think(text[:certain], parts)
            return ""
        self._think(text[:at], parts)
        self._state, self._spaces, self._at_start = _State.AFTER, [], True
        return text[at + len(close) :]

    def _think(self, text: str, parts: list[Thought | str]) -> None:
        """Emit a part of the thought, but hold trailing white space."""
        if self._at_start:
            text = text.lstrip()
        kept = text.rstrip()
        if kept:
            self._at_start = False
            parts.append(Thought("".join(self._spaces) + kept))
            self._spaces = []
        if len(kept) < len(text):
            self._spaces.append(text[len(kept) :])

    def _emit(self, text: str, parts: list[Thought | str]) -> None:
        if self._at_start:
            text = text.lstrip()
        if text:
            self._at_start = False
            parts.append(text)


AnswerPart: TypeAlias = str | ToolCall | Thought
"""A piece of content, a call, or a piece of the thought."""


@dataclass(frozen=True, eq=False)
class AnswerReader:
    """Splits a growing answer. The joined parts do not depend on how the text was cut up."""

    thoughts: ThoughtScanner | None = None
    """Separates the thought; None reads none."""
    calls: CallScanner | None = None
    """Finds tool calls in the rest; None reads none."""

    @property
    def thought_found(self) -> bool:
        """True if the answer has a thought, which may be empty."""
        return self.thoughts is not None and self.thoughts.found

    def feed(self, text: str) -> list[AnswerPart]:
        """Add text; return the parts that are certain by now."""
        return self._with_calls([text] if self.thoughts is None else self.thoughts.feed(text))

    def finish(self) -> list[AnswerPart]:
        """Return the rest. A thought need not be closed."""
        parts = [] if self.thoughts is None else self._with_calls(self.thoughts.finish())
        return parts if self.calls is None else [*parts, *self.calls.finish()]

    def _with_calls(self, stretches: Sequence[Thought | str]) -> list[AnswerPart]:
        if self.calls is None:
            return list(stretches)
        parts: list[AnswerPart] = []
        for stretch in stretches:
            parts += [stretch] if isinstance(stretch, Thought) else self.calls.feed(stretch)
        return parts
