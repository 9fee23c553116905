"""The model's vocabulary as llguidance reads it: the bytes of every token, made once for a server."""

from __future__ import annotations

from collections.abc import Sequence

from llguidance import LLTokenizer

from ..render.tokenizer import Tokenizer


class UnreadableTokenizerError(Exception):
    """llguidance cannot tell the bytes of this tokenizer's tokens; the message says why."""


class Vocabulary:
    """Tokens as bytes. Making it takes up to a second.

    Args:
        tokenizer: a fast Hugging Face tokenizer.
        end_ids: ids that end an answer, the one to write first.

    Raises:
        UnreadableTokenizerError: it is of another kind, or nothing ends an answer.
    """

    def __init__(self, tokenizer: Tokenizer, end_ids: Sequence[int]) -> None:
        # It imports transformers, which whoever made the tokenizer has imported already.
        from llguidance.hf import from_tokenizer

        ends = [id_ for id_ in end_ids if id_ < len(tokenizer)]
        if not ends:
            raise UnreadableTokenizerError("it has no token that ends an answer")
        try:
            self.tokens: LLTokenizer = from_tokenizer(tokenizer, eos_token=ends)
        except Exception as error:  # foreign tokenizers fail in ways of their own
            raise UnreadableTokenizerError(str(error)) from error
        self.end_ids = frozenset(ends)
        self.end_id = ends[0]
        """The token that the chat template ends an answer with."""
        self.special: dict[str, int] = {
            name: id_ for name, id_ in tokenizer.get_added_vocab().items() if self.tokens.is_special_token(id_)
        }
        """Tokens that are no text, by name."""
