"""A compiled grammar, how it follows one continuation, and the model's vocabulary as llguidance reads it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask

from ...tokens import ConstraintError

if TYPE_CHECKING:
    from ..render.decoding import Tokenizer

_LIMITS = LLParserLimits(verbose_errors=False, max_lexer_states=50_000, step_max_items=15_000)
"""A state takes 1 to 2 KiB, and is kept as long as the grammar. An item takes some microseconds, and all items of one
token come before anybody else has a turn: 300 forms at once, told apart by their last field, take up to 15,000."""

_STEP_SECONDS: Final = 0.002
"""Processor time that a token may take on average; a usual one takes a tenth of it."""
_AHEAD_SECONDS: Final = 0.08
"""Processor time by which the tokens of one grammar may go beyond the average: nobody waits longer for their sake."""
_SHARE: Final = 0.1
"""Part of the time that goes by which the tokens of a grammar may take, on top."""
_MOST_CERTAIN: Final = 512
"""Tokens without a choice that are told at once; a value in a schema may have a hundred thousand."""
_LONGEST_TOKEN: Final = 64
"""Bytes of text that is looked at for the tokens that begin it."""


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


def compile_grammar(text: str, tokens: LLTokenizer) -> LLMatcher:
    """Return a matcher at its beginning, with the work for the first token done: copies of it need not do it again.

    Args:
        text: in llguidance's dialect of Lark.
        tokens: the vocabulary.

    Raises:
        GrammarError: it cannot be compiled.
    """
    matcher = LLMatcher(tokens, text, log_level=0, limits=_LIMITS)
    if not matcher.is_error() and not matcher.compute_ff_tokens() and not matcher.is_stopped():
        matcher.compute_bitmask()
    if matcher.is_error():
        raise GrammarError(matcher.get_error())
    return matcher


class StepBudget:
    """Processor time that the tokens of one grammar take while others wait for theirs.

    A schema can be quick to compile and slow to follow. Each token brings `_STEP_SECONDS`, and each second a tenth of
    one; what they take beyond that is bounded by `_AHEAD_SECONDS` and one token, for all answers of the grammar
    together. Used on the thread that samples.
    """

    def __init__(self) -> None:
        self._left = _AHEAD_SECONDS
        self._since = time.monotonic()

    @contextmanager
    def spending(self) -> Iterator[None]:
        """Count the time of the block as that of a token.

        Raises:
            ConstraintError: it is used up, before the block or by it.
        """
        now = time.monotonic()
        self._left = min(_AHEAD_SECONDS, self._left + (now - self._since) * _SHARE)
        self._since = now
        if self._left >= 0:
            began = time.thread_time()
            try:
                yield
            finally:  # what fails has taken its time as well
                self._left += _STEP_SECONDS - (time.thread_time() - began)
        if self._left < 0:
            raise ConstraintError(
                f"its schema takes too long to follow: more than {_STEP_SECONDS * 1000:g} ms for each token, and "
                f"{_AHEAD_SECONDS:g} s beyond that"
            )


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
        self._budget = StepBudget()
        self._matcher = compile_grammar(text, vocabulary.tokens)

    def begin(self) -> GrammarConstraint:
        """Begin a new continuation. Cheap: what has been learnt about the grammar's tokens is shared by all."""
        return GrammarConstraint(self._matcher.deep_copy(), self._vocabulary, self._budget)


class GrammarConstraint:
    """A `TokenConstraint` over a matcher that is its own.

    Where the grammar leaves no choice of the text, as inside of a key, one token is allowed: the one by which the
    tokenizer itself would write it. Left to chance, the model would spell such text in pieces it was never trained on.
    (Where the model lacks that token, any spelling will do.)
    """

    def __init__(self, matcher: LLMatcher, vocabulary: Vocabulary, budget: StepBudget) -> None:
        self._matcher = matcher
        self._budget = budget
        self._tokens = vocabulary.tokens
        self._end_id = vocabulary.end_id
        self._special = frozenset(vocabulary.special.values())
        self._literal: deque[int] = deque()

    def allowed(self, vocabulary: int) -> npt.NDArray[np.int32]:
        """See `TokenConstraint.allowed`."""
        with self._budget.spending():
            return self._allowed(vocabulary)

    def certain(self, vocabulary: int) -> Sequence[int]:
        """See `TokenConstraint.certain`: the rest of the text that has just been found to be without a choice, or its
        beginning where it is long."""
        return list(takewhile(lambda id_: id_ < vocabulary, islice(self._literal, _MOST_CERTAIN)))

    def _allowed(self, vocabulary: int) -> npt.NDArray[np.int32]:
        if not self._literal and not self._matcher.is_stopped():
            certain = self._matcher.compute_ff_tokens()
            self._literal.extend(self._as_text(certain))
            if certain and not self._literal:
                return self._bits(self._spellings(vocabulary))
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

    def _as_text(self, certain: list[int]) -> list[int]:
        """Return ids that the library has found to be certain, up to where it takes the name of a special token for
        that token though it is text, as in a name or a value of a schema."""
        if self._special.isdisjoint(certain):
            return certain
        return certain[: self._matcher.validate_tokens(certain)]

    def _spellings(self, vocabulary: int) -> list[int]:
        """Return the ids of text, below `vocabulary`, that begin the text that is certain."""
        text = self._matcher.compute_ff_bytes()[:_LONGEST_TOKEN]
        starts = (self._tokens.tokenize_bytes(text[:size]) for size in range(1, len(text) + 1))
        ids_found = {ids[0] for ids in starts if len(ids) == 1 and ids[0] < vocabulary}
        return sorted(ids_found - self._special)

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
        self._core: Any = tokenizer.backend_tokenizer  # type: ignore[attr-defined]  # it has just been read from there
        self.end_ids = frozenset(ends)
        self.end_id = ends[0]
        """The token that the chat template ends an answer with."""
        self.special: dict[str, int] = {
            name: id_ for name, id_ in tokenizer.get_added_vocab().items() if self.tokens.is_special_token(id_)
        }
        """Tokens that are no text, by name."""

    def definition(self) -> str:
        """Return what a `LLTokenizer` of another process is made from: megabytes of JSON."""
        core = copy(self._core)
        core.no_padding()
        core.no_truncation()
        text: str = core.to_str()
        return text
