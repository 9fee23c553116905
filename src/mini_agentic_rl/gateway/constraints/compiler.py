"""From the form of an answer to a constraint on tokens: tried in another process, then compiled in this one.

The cost of a form is bounded at each step. Its size is checked in `rules`. It is first compiled in a process that the
system kills at `max_grammar_seconds` or `max_grammar_mib` (`trial`), and only then in this process, off the event loop
and without the interpreter's lock. The cost of its tokens is bounded by `StepBudget`. There are two lanes: a form that
takes at most `trial.QUICK_SECONDS` waits only for others like it, at most `trial.MAX_WAITING`, two at a time.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from ...http import BadRequestError, OverloadedError
from ...tokens import TokenConstraint
from ..render.decoding import Tokenizer
from ..settings import GrammarLimits
from .grammar import Grammar, GrammarError, UnreadableTokenizerError, Vocabulary
from .rules import ANY_OBJECT, AnswerRule, ValueRule, answer_grammar, schema_with_options
from .trial import QUICK_SECONDS, GrammarTrials, NoTrialError, TrialOutcome

MAX_MIB: Final = 1024
"""Memory of all kept grammars, measured when they were compiled."""
REFUSED_SECONDS: Final = 300.0
"""Seconds for which a refusal is repeated without another trial."""
_MAX_REFUSALS: Final = 4096
_ENDED: Final = {
    "time": "compiling it takes more than {0.max_grammar_seconds:g} s of processor time (max_grammar_seconds)",
    "memory": "compiling it takes more than {0.max_grammar_mib} MiB of memory (max_grammar_mib)",
}
_PATIENCE: Final = 60.0
"""Seconds to wait for an outcome beside its CPU time, on a busy machine."""

logger = logging.getLogger(__name__)


class ConstraintCompiler:
    """Compiles forms, and keeps grammars and refusals, the most recently used ones. Used from one event loop at a time.

    Args:
        tokenizer: the model's tokenizer. It is read here, because reading it blocks other threads for up to a second.
        end_ids: ids that end an answer, the preferred one first.
        max_grammars: maximum number of kept grammars.
        limits: limits of compiling a form.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        end_ids: Sequence[int],
        *,
        max_grammars: int = 256,
        limits: GrammarLimits | None = None,
    ) -> None:
        self._limits = limits or GrammarLimits()
        self._max_grammars = max_grammars
        self._grammars: OrderedDict[bytes, tuple[Grammar, float]] = OrderedDict()
        """Each with its memory in MiB."""
        self._mib = 0.0
        self._refusals: OrderedDict[bytes, tuple[BadRequestError, float]] = OrderedDict()
        """Each with the time until which it is repeated."""
        self._jobs: dict[bytes, _Job] = {}
        # Quick forms do not wait for slow ones, here too.
        self._quick = ThreadPoolExecutor(1, "grammar")
        self._slow = ThreadPoolExecutor(1, "large-grammar")
        self._unreadable = ""
        """Why the tokenizer cannot be read; empty if it can."""
        try:
            self._vocabulary = Vocabulary(tokenizer, end_ids)
            self._trials = GrammarTrials(self._vocabulary.definition, self._vocabulary.ends, self._limits)
        except UnreadableTokenizerError as error:
            self._unreadable = str(error)
            logger.info("answers cannot be constrained: llguidance cannot read the tokenizer: %s", error)

    async def compile(self, rule: AnswerRule) -> Callable[[], TokenConstraint] | None:
        """Return a function that begins a constraint; None for strict tools if the tokenizer cannot be read.

        The work stops when all callers for a form are cancelled.

        Raises:
            BadRequestError: a schema cannot be compiled, or not within the limits, or the tokenizer cannot be read;
                `param` names the field.
            OverloadedError: too many forms are being compiled.
        """
        if self._unreadable and rule.opening is not None:
            return None
        if self._unreadable:
            raise BadRequestError(
                f"{rule.field}: the answer cannot be constrained, because the model's tokenizer cannot be read: "
                f"{self._unreadable}",
                param=rule.field,
                code="unsupported_tokenizer",
            )
        key = hashlib.blake2b(repr(rule).encode("utf-8", "surrogatepass"), digest_size=16).digest()
        if key in self._grammars:
            self._grammars.move_to_end(key)
            return self._grammars[key][0].begin
        refusal, until = self._refusals.get(key, (None, 0.0))
        if refusal is not None and time.monotonic() < until:
            raise BadRequestError(refusal.message, param=refusal.param)
        # Wait for the form together with all other callers for it.
        loop = asyncio.get_running_loop()
        job = self._jobs.get(key)
        if job is None or job.task.get_loop() is not loop:
            job = self._jobs[key] = _Job(loop.create_task(self._make(key, rule)))
            job.task.add_done_callback(partial(self._forget, key))
        job.waiting += 1
        try:
            return (await asyncio.shield(job.task)).begin
        finally:
            job.waiting -= 1
            if not job.waiting:  # the next caller must not be cancelled with this job
                self._forget(key, job.task)
                job.task.cancel()

    def close(self) -> None:
        """Stop the process that tries grammars; the next form starts it again."""
        if not self._unreadable:
            self._trials.close()

    def _forget(self, key: bytes, task: asyncio.Task[Grammar]) -> None:
        if key in self._jobs and self._jobs[key].task is task:
            del self._jobs[key]

    async def _make(self, key: bytes, rule: AnswerRule) -> Grammar:
        try:
            text, outcome = await self._tried(rule)
            thread = self._quick if outcome.seconds <= QUICK_SECONDS else self._slow
            grammar = await asyncio.get_running_loop().run_in_executor(thread, Grammar, text, self._vocabulary)
        except (GrammarError, BadRequestError) as error:
            if isinstance(error, BadRequestError):
                refusal = error
            else:
                refusal = BadRequestError(f"{rule.field}: {error}", param=rule.field)
            self._refusals.pop(key, None)
            self._refusals[key] = (refusal, time.monotonic() + REFUSED_SECONDS)
            if len(self._refusals) > _MAX_REFUSALS:
                self._refusals.popitem(last=False)
            raise refusal from None
        self._grammars[key] = (grammar, outcome.mib)
        self._mib += outcome.mib
        while len(self._grammars) > self._max_grammars or (self._mib > MAX_MIB and len(self._grammars) > 1):
            self._mib -= self._grammars.popitem(last=False)[1][1]
        return grammar

    async def _tried(self, rule: AnswerRule) -> tuple[str, TrialOutcome]:
        """Return the grammar of a form and the outcome of its trial. Arguments of calls that are not strict become any
        object if the library cannot compile their schemas."""
        patience = _PATIENCE + 20 * self._limits.max_grammar_seconds
        for _ in range(2):
            values = [*(() if rule.value is None else (rule.value,)), *(call.arguments for call in rule.calls)]
            written = partial(_written, rule, values, self._vocabulary)
            schemas, text = await asyncio.get_running_loop().run_in_executor(self._quick, written)
            try:
                outcome = await asyncio.wait_for(self._trials.ask(schemas, text), patience)
            except (NoTrialError, asyncio.TimeoutError) as error:
                logger.warning("the form of an answer could not be tried: %s", error or "no answer in time")
                raise OverloadedError(
                    f"The server is busy: {error or 'it compiles too much'}. Try again shortly."
                ) from error
            if outcome.ended:
                raise GrammarError(_ENDED[outcome.ended].format(self._limits))
            if outcome.refused is not None:
                index, reason = outcome.refused
                field = rule.field if index < 0 else values[index].field
                raise BadRequestError(f"{field}: {reason}", param=field)
            if not outcome.loosened:
                break
            rule = _loosened(rule, outcome.loosened)
        return text, outcome


@dataclass
class _Job:
    """A form that is being compiled, and the number of its callers."""

    task: asyncio.Task[Grammar]
    waiting: int = 0


def _loosened(rule: AnswerRule, indices: Sequence[int]) -> AnswerRule:
    """Return the form with any object as the arguments at these indices of its schemas."""
    first = 0 if rule.value is None else 1
    return replace(
        rule,
        calls=tuple(
            replace(call, arguments=replace(call.arguments, schema=ANY_OBJECT)) if index in indices else call
            for index, call in enumerate(rule.calls, first)
        ),
    )


def _written(
    rule: AnswerRule, values: Sequence[ValueRule], vocabulary: Vocabulary
) -> tuple[list[tuple[str, bool]], str]:
    """Return the schemas of a form, each with True if it must compile, and its grammar."""
    schemas = [(schema_with_options(value), value is rule.value or value.strict) for value in values]
    return schemas, answer_grammar(rule, vocabulary.special, vocabulary.ends)
