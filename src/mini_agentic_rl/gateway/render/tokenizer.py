"""What the gateway uses of a tokenizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol


class Tokenizer(Protocol):
    """What is used of a Hugging Face tokenizer."""

    chat_template: Any
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


def special_tokens(tokenizer: Tokenizer) -> dict[str, int]:
    """Text and id of the tokens that `decode(skip_special_tokens=True)` leaves out."""
    return {token.content: id_ for id_, token in tokenizer.added_tokens_decoder.items() if token.special}


def end_tokens(tokenizer: Tokenizer) -> dict[str, int]:
    """Text and id of the tokens that may end a turn: those added to the vocabulary, and the EOS token."""
    known = dict(tokenizer.get_added_vocab())
    if tokenizer.eos_token and tokenizer.eos_token_id is not None:
        known[tokenizer.eos_token] = tokenizer.eos_token_id
    return known


def chat_template_of(tokenizer: Tokenizer) -> str:
    """Its chat template, the default one of several; ChatML where it has none."""
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
