"""A compiled grammar, how it follows one continuation, and the model's vocabulary as llguidance reads it."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask

from ...tokens import ConstraintError
from ..render import Tokenizer

_LIMITS = LLParserLimits(verbose_errors=False)


class GrammarError(Exception):
    """The grammar cannot be compiled; the message says why."""


def check_schema(schema: str) -> None:
    """Compile a schema alone, for its errors only.

    Args:
        schema: JSON text, with the library's options in it.

    Raises:
        GrammarError: there is one.
    """
    grammar = LLMatcher.grammar_from_json_schema(schema)
    failed, messages = LLMatcher.validate_grammar_with_warnings(grammar, limits=_LIMITS)
    if failed:
        raise GrammarError(messages[0])


class Grammar:
    """Begins continuations that obey one grammar.

    Args:
        text: in llguidance's dialect of Lark.
        vocabulary: the tokens.

    Raises:
        GrammarError: it cannot be compiled.
    """

    def __init__(self, text: str, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._matcher = LLMatcher(vocabulary.tokens, text, log_level=0, limits=_LIMITS)
        if self._matcher.is_error():
            raise GrammarError(self._matcher.get_error())

    def begin(self) -> GrammarConstraint:
        """Begin a new continuation. Cheap: what has been learnt about the grammar's tokens is shared by all."""
        return GrammarConstraint(self._matcher.deep_copy(), self._vocabulary)


class GrammarConstraint:
    """A `TokenConstraint` over a matcher that is its own.

    Where the grammar leaves no choice of the text, as inside of a key, one token is allowed: the one by which the
    tokenizer itself would write it. Left to chance, the model would spell such text in pieces it was never trained on.
    (Where the model lacks that token, any spelling will do.)
    """

    def __init__(self, matcher: LLMatcher, vocabulary: Vocabulary) -> None:
        self._matcher = matcher
        self._tokens = vocabulary.tokens
        self._end_id = vocabulary.end_id
        self._literal: deque[int] = deque()

    def allowed(self, vocabulary: int) -> npt.NDArray[np.int32]:
        """See `TokenConstraint.allowed`."""
        if not self._literal and not self._matcher.is_stopped():
            self._literal.extend(self._matcher.compute_ff_tokens())
        if self._literal:
            return self._bits([self._literal[0]] if self._literal[0] < vocabulary else self._spellings(vocabulary))
        mask_1W = allocate_token_bitmask(1, self._tokens.vocab_size)
        if not self._matcher.is_stopped():
            fill_next_token_bitmask(self._matcher, mask_1W)
        if self._matcher.is_error():
            raise ConstraintError(self._matcher.get_error())
        if self._matcher.is_stopped():
            return self._bits([self._end_id])
        mask_W: npt.NDArray[np.int32] = mask_1W[0]
        return mask_W

    def advance(self, token_id: int) -> None:
        """See `TokenConstraint.advance`."""
        if self._literal and self._literal.popleft() != token_id:
            self._literal.clear()
        self._matcher.consume_token(token_id)

    def _spellings(self, vocabulary: int) -> list[int]:
        """Return the ids below `vocabulary` that begin the text that is certain."""
        text = self._matcher.compute_ff_bytes()
        starts = (self._tokens.tokenize_bytes(text[:size]) for size in range(1, len(text) + 1))
        return [ids[0] for ids in starts if len(ids) == 1 and ids[0] < vocabulary]

    def _bits(self, ids: Sequence[int]) -> npt.NDArray[np.int32]:
        words = np.zeros(-(-self._tokens.vocab_size // 32), np.uint32)
        for id_ in ids:
            words[id_ // 32] |= 1 << id_ % 32
        return words.view(np.int32)


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
