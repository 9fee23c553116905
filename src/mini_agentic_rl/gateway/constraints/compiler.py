"""From the form of an answer to a constraint, off the event loop and at most once for each form."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from ...http import BadRequestError
from ...tokens import TokenConstraint
from ..render import Tokenizer
from .grammar import Grammar, GrammarError, UnreadableTokenizerError, Vocabulary, check_schema
from .rules import ANY_OBJECT, AnswerRule, CallRule, ValueRule, answer_grammar, schema_with_options

logger = logging.getLogger(__name__)


class ConstraintCompiler:
    """Compiles, and keeps what it compiled.

    Args:
        tokenizer: the model's tokenizer; read when the first form is asked for.
        end_ids: ids that end an answer, the one to write first.
        max_grammars: how many are kept; the one used longest ago is dropped first.
    """

    def __init__(self, tokenizer: Tokenizer, end_ids: Sequence[int], *, max_grammars: int = 256) -> None:
        self._tokenizer = tokenizer
        self._end_ids = tuple(end_ids)
        self._max_grammars = max_grammars
        self._grammars: OrderedDict[AnswerRule, Grammar] = OrderedDict()
        self._lock = threading.Lock()
        self._vocabulary: Vocabulary | None = None
        self._unreadable: str | None = None
        # One thread: the same form asked for many times at once is compiled once.
        self._thread = ThreadPoolExecutor(1, "grammar")

    async def compile(self, rule: AnswerRule) -> Callable[[], TokenConstraint] | None:
        """Return what begins a continuation of this form; None where the form is a tool's promise that cannot be kept,
        because the tokenizer cannot be read.

        Raises:
            BadRequestError: a schema cannot be compiled, or the tokenizer cannot be read; names the field.
        """
        grammar = self._find(rule)
        if grammar is None:
            loop = asyncio.get_running_loop()
            try:
                grammar = await loop.run_in_executor(self._thread, self._make, rule)
            except UnreadableTokenizerError as error:
                if rule.opening is not None:
                    return None
                raise BadRequestError(
                    f"{rule.field}: the answer cannot be constrained, because the model's tokenizer cannot be read: "
                    f"{error}",
                    param=rule.field,
                    code="unsupported_tokenizer",
                ) from error
        return grammar.begin

    def _find(self, rule: AnswerRule) -> Grammar | None:
        with self._lock:
            grammar = self._grammars.get(rule)
            if grammar is not None:
                self._grammars.move_to_end(rule)
            return grammar

    def _make(self, rule: AnswerRule) -> Grammar:
        known = self._find(rule)
        if known is not None:
            return known
        vocabulary = self._read_vocabulary()
        if rule.value is not None:
            _check(rule.value)
        checked = replace(rule, calls=tuple(_checked(call) for call in rule.calls))
        try:
            grammar = Grammar(answer_grammar(checked, vocabulary.special, vocabulary.end_ids), vocabulary)
        except GrammarError as error:
            raise BadRequestError(f"{rule.field}: {error}", param=rule.field) from error
        with self._lock:
            self._grammars[rule] = grammar
            if len(self._grammars) > self._max_grammars:
                self._grammars.popitem(last=False)
        return grammar

    def _read_vocabulary(self) -> Vocabulary:
        if self._unreadable is not None:
            raise UnreadableTokenizerError(self._unreadable)
        if self._vocabulary is None:
            try:
                self._vocabulary = Vocabulary(self._tokenizer, self._end_ids)
            except UnreadableTokenizerError as error:
                logger.warning("answers cannot be constrained: llguidance cannot read the tokenizer: %s", error)
                self._unreadable = str(error)
                raise
        return self._vocabulary


def _check(value: ValueRule) -> None:
    try:
        check_schema(schema_with_options(value))
    except GrammarError as error:
        raise BadRequestError(f"{value.field}: {error}", param=value.field) from error


def _checked(call: CallRule) -> CallRule:
    """Check a call; its arguments may be any object where it is not strict and the library cannot take its schema."""
    try:
        _check(call.arguments)
    except BadRequestError:
        if call.arguments.strict:
            raise
        return replace(call, arguments=replace(call.arguments, schema=ANY_OBJECT))
    return call
