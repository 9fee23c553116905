"""A compiled grammar, its state in one answer, and the model's vocabulary for llguidance."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask

from ...tokens import ConstraintError

if TYPE_CHECKING:
    from ..render.decoding import Tokenizer

_LIMITS = LLParserLimits(verbose_errors=False, max_lexer_states=50_000, step_max_items=15_000)
"""A lexer state takes 1 to 2 KiB for the lifetime of the grammar. An item takes microseconds, and the items of one
token block all other answers: 300 alternatives that differ in their last field take up to 15,000."""

_STEP_SECONDS: Final = 0.002
"""Mean CPU time of a token; a usual one takes a tenth of it."""
_AHEAD_SECONDS: Final = 0.08
"""CPU time by which the tokens of a grammar may exceed the mean; nobody waits longer for them."""
_SHARE: Final = 0.1
"""Share of the elapsed time that is added to the budget."""
_MOST_CERTAIN: Final = 512
"""Determined tokens that are reported at once; a value in a schema may have a hundred thousand."""
_LONGEST_TOKEN: Final = 64
"""Bytes of determined text in which its first token is searched."""


class GrammarError(Exception):
    """The grammar cannot be compiled."""


def check_schema(schema: str) -> None:
    """Compile a schema alone; raises GrammarError if it is invalid.

    Args:
        schema: JSON text, including the library's options.
    """
    grammar = LLMatcher.grammar_from_json_schema(schema)
    failed, messages = LLMatcher.validate_grammar_with_warnings(grammar, limits=_LIMITS)
    if failed:
        raise GrammarError(messages[0])


def compile_grammar(text: str, tokens: LLTokenizer) -> LLMatcher:
    """Return a matcher at its start. The work for the first token is done, and shared by its copies.

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
        reason = matcher.get_error()  # NoExtensionBias: no token can begin an answer
        raise GrammarError("no answer has this form" if reason.startswith("NoExtension") else reason)
    return matcher


class StepBudget:
    """Budget of CPU time for the tokens of one grammar, while other answers wait for theirs.

    A schema can be quick to compile and slow to follow. Each token adds `_STEP_SECONDS` to the budget, and each second
    `_SHARE`. The excess is bounded by `_AHEAD_SECONDS` and one token, for all answers of the grammar together. Used on
    the sampling thread.
    """

    def __init__(self) -> None:
        self._left = _AHEAD_SECONDS
        self._since = time.monotonic()

    @contextmanager
    def spending(self) -> Iterator[None]:
        """Charge the time of the block; raises ConstraintError if the budget is used up before or after it."""
        now = time.monotonic()
        self._left = min(_AHEAD_SECONDS, self._left + (now - self._since) * _SHARE)
        self._since = now
        if self._left >= 0:
            began = time.thread_time()
            try:
                yield
            finally:  # a failing token is charged as well
                self._left += _STEP_SECONDS - (time.thread_time() - began)
        if self._left < 0:
            raise ConstraintError(
                f"its schema takes too long to follow: more than {_STEP_SECONDS * 1000:g} ms for each token, and "
                f"{_AHEAD_SECONDS:g} s beyond that"
            )


class Grammar:
    """A compiled grammar; raises GrammarError if it cannot be compiled.

    Args:
        text: in llguidance's dialect of Lark.
        vocabulary: the tokens.
    """

    def __init__(self, text: str, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._budget = StepBudget()
        self._matcher = compile_grammar(text, vocabulary.tokens)

    def begin(self) -> GrammarConstraint:
        """Return the state for a new answer. Cheap: the tables of the grammar are shared."""
        return GrammarConstraint(self._matcher.deep_copy(), self._vocabulary, self._budget)


class GrammarConstraint:
    """A `TokenConstraint` with its own matcher.

    Where the grammar determines the text, as inside of a key, only the token that the tokenizer itself would use is
    allowed. Otherwise the model might spell the text in tokens that it was never trained on. (If the model lacks that
    token, any spelling is allowed.)
    """

    def __init__(self, matcher: LLMatcher, vocabulary: Vocabulary, budget: StepBudget) -> None:
        self._matcher = matcher
        self._budget = budget
        self._tokens = vocabulary.tokens
        self._end_id = vocabulary.ends[0]
        self._special = frozenset(vocabulary.special.values())
        self._literal: deque[int] = deque()

    def allowed(self, vocabulary: int) -> npt.NDArray[np.int32]:
        """See `TokenConstraint.allowed`."""
        matcher = self._matcher
        with self._budget.spending():
            if not self._literal and not matcher.is_stopped():
                certain = matcher.compute_ff_tokens()
                # The library may read a special token in the text of a name or value: keep the ids up to it.
                plain = self._special.isdisjoint(certain)
                self._literal.extend(certain if plain else certain[: matcher.validate_tokens(certain)])
                if certain and not self._literal:
                    return self._bits(self._spellings(vocabulary))
            if self._literal:
                return self._bits([self._literal[0]] if self._literal[0] < vocabulary else self._spellings(vocabulary))
            mask_1W = allocate_token_bitmask(1, self._tokens.vocab_size)
            if not matcher.is_stopped():
                fill_next_token_bitmask(matcher, mask_1W)
            if matcher.is_error():
                raise ConstraintError(matcher.get_error())
            if matcher.is_stopped():
                return self._bits([self._end_id])
            mask_W: npt.NDArray[np.int32] = mask_1W[0]
            return mask_W

    def certain(self, vocabulary: int) -> Sequence[int]:
        """See `TokenConstraint.certain`: the rest of the determined text, or its beginning if it is long."""
        return list(takewhile(lambda id_: id_ < vocabulary, islice(self._literal, _MOST_CERTAIN)))

    def advance(self, token_id: int) -> None:
        """See `TokenConstraint.advance`."""
        if self._literal and self._literal.popleft() != token_id:
            self._literal.clear()
        self._matcher.consume_token(token_id)

    def _spellings(self, vocabulary: int) -> list[int]:
        """Return the ids below `vocabulary` whose text begins the determined text."""
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
    """llguidance cannot read the bytes of this tokenizer's tokens."""


class Vocabulary:
    """The tokens as bytes. Its creation takes up to a second.

    Args:
        tokenizer: a fast Hugging Face tokenizer.
        end_ids: ids that end an answer, the preferred one first.

    Raises:
        UnreadableTokenizerError: the tokenizer is of another kind, or no id ends an answer.
    """

    def __init__(self, tokenizer: Tokenizer, end_ids: Sequence[int]) -> None:
        from transformers import PreTrainedTokenizerFast  # the owner of the tokenizer has imported it

        if not isinstance(tokenizer, PreTrainedTokenizerFast):
            raise UnreadableTokenizerError("only fast Hugging Face tokenizers can be read")
        self.ends = [id_ for id_ in end_ids if id_ < len(tokenizer)]
        """The token with which the chat template ends an answer, and other tokens that end one."""
        if not self.ends:
            raise UnreadableTokenizerError("it has no token that ends an answer")
        try:
            core = tokenizer.backend_tokenizer
            if core.padding is not None or core.truncation is not None:
                core = copy(core)  # it takes half a second
                core.no_padding()
                core.no_truncation()
            self.definition: str = core.to_str()
            """Megabytes of JSON from which another process creates a `LLTokenizer`."""
            self.tokens = LLTokenizer(self.definition, eos_token=self.ends)
        except Exception as error:  # tokenizers raise anything
            raise UnreadableTokenizerError(str(error)) from error
        self.special: dict[str, int] = {
            name: id_ for name, id_ in tokenizer.get_added_vocab().items() if self.tokens.is_special_token(id_)
        }
        """Ids of special tokens by name."""
