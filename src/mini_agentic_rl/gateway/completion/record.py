"""The attempts that calls belong to: looked up in the store, held to their budgets, and recorded as spans.

An attempt is looked up once, before its first call. A rollout with a seed (`SAMPLING_SEED` in its metadata) gives one
to each of its calls that names none, by the place of the call in the attempt. One with an expert prefix
(`EXPERT_PREFIX`) has its first calls answered with recorded ones.

A call beyond the budget is refused with status 403, which the SDKs do not try again. The first refusal is recorded as
an exception span of the attempt, so that its reason is in the store even where the agent swallows the error.

Every answer becomes one span with the exact tokens, stored before the answer is complete.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from ...errors import log_failure
from ...http import LARGE, BadRequestError, encode_in_steps, off_loop, size_of
from ...semconv import (
    AGL_EXCEPTION,
    EXPERT_PREFIX,
    FAILURE_REASON,
    ROLLOUT_BUDGET_EXCEEDED,
    SAMPLING_SEED,
    GenAiAttributes,
    LightningResourceAttributes,
)
from ...semconv import CompletionSpanAttributes as Attr
from ...store import LightningStore
from ...tokens import CompletionRecord, SamplingParams
from ...types import Attempt, OtelResource, Rollout, Span, TraceStatus
from ..dialects import CallScope
from ..errors import NotFoundError, RecordingError, RolloutBudgetError
from ..settings import RolloutLimits

logger = logging.getLogger(__name__)

TOKENS_HELP: Final = "Tokens of prompts, those of them found in a cache, and tokens sampled."
"""Help of the metric that counts tokens."""
_MOST_BUDGETS: Final = 65_536
"""Attempts whose use is remembered; the one used longest ago is forgotten first."""
_MOST_ATTEMPTS: Final = 4096
"""Attempts that are remembered; the one looked up longest ago is forgotten first."""


def unknown_attempt(reason: object) -> NotFoundError:
    """Return the error of a call whose rollout or attempt the store does not know."""
    return NotFoundError(f"the call cannot be recorded: {reason}", code="rollout_not_found")


def not_recorded(reason: object) -> RecordingError:
    """Return the error of a call that the store could not take."""
    return RecordingError(f"the call could not be recorded: {reason}", code="recording_failed")


@dataclass
class _Known:
    seed: int | None
    """Of the attempt; None where its rollout has none."""
    calls: int = 0
    prefix: list[CompletionRecord] = field(default_factory=list)
    """Recorded calls that its next calls are answered with."""


@dataclass
class KnownAttempts:
    """Look attempts up, and give each call of theirs a seed of its own, by its place in the attempt. Used from one
    event loop."""

    store: LightningStore
    prefixes: Mapping[str, Sequence[CompletionRecord]] = field(default_factory=dict)
    """Recorded calls by the name that a rollout has for them in its metadata (`EXPERT_PREFIX`)."""
    _known: OrderedDict[tuple[str, str], _Known] = field(default_factory=OrderedDict)

    async def check(self, scope: CallScope) -> None:
        """Return if calls under `scope` can be recorded.

        Raises:
            NotFoundError: the store knows no such rollout or attempt.
            BadRequestError: the rollout's seed is no integer.
            RecordingError: the store does not answer.
        """
        if scope is None or scope in self._known:
            return
        rollout_id, attempt_id = scope
        try:
            rollout = await self.store.get_rollout_by_id(rollout_id)
            attempts = [] if rollout is None else await self.store.query_attempts(rollout_id)
        except Exception as error:  # any store may stand behind the contract; the agent must learn of it
            log_failure(logger, error, f"could not look up attempt {attempt_id} of rollout {rollout_id}")
            raise not_recorded(error) from error
        if rollout is None:
            raise unknown_attempt(f"there is no rollout {rollout_id!r}")
        known_attempt = next((attempt for attempt in attempts if attempt.attempt_id == attempt_id), None)
        if known_attempt is None:
            raise unknown_attempt(f"rollout {rollout_id!r} has no attempt {attempt_id!r}")
        prefix = self.prefixes.get(str(rollout.metadata.get(EXPERT_PREFIX)), ())
        self._known[scope] = _Known(_seed_of(rollout, known_attempt), prefix=list(prefix))
        if len(self._known) > _MOST_ATTEMPTS:
            self._known.popitem(last=False)

    def next_seed(self, scope: CallScope) -> int | None:
        """Return the seed of the next call under `scope`; None where its rollout has none."""
        known = None if scope is None else self._known.get(scope)
        if known is None or known.seed is None:
            return None
        text = f"{known.seed}/{known.calls}"
        known.calls += 1
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1

    def next_recorded(self, scope: CallScope, prompt_ids: Sequence[int]) -> CompletionRecord | None:
        """Return the recorded call that answers the next call under `scope`; None where it is to be sampled.

        An agent whose prompt is not the recorded one, token by token, has left the recorded conversation: the rest of
        that is dropped.
        """
        known = None if scope is None else self._known.get(scope)
        if known is None or not known.prefix:
            return None
        if not np.array_equal(known.prefix[0].prompt_ids, np.asarray(prompt_ids, np.int64)):
            known.prefix.clear()
            return None
        return known.prefix.pop(0)


def _seed_of(rollout: Rollout, attempt: Attempt) -> int | None:
    seed = rollout.metadata.get(SAMPLING_SEED)
    if seed is None:
        return None
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise BadRequestError(
            f"the metadata of rollout {rollout.rollout_id!r} has {SAMPLING_SEED}={seed!r}: expected an integer",
            code="rollout_seed",
        )
    return seed + attempt.sequence_id - 1 if rollout.config.max_attempts > 1 else seed


@dataclass
class _Usage:
    """Calls and tokens of an attempt so far."""

    calls: int = 0
    tokens: int = 0
    marked: bool = False


class RolloutBudgets:
    """Count calls and tokens of attempts. Used from one event loop.

    A call is counted when it begins, with its prompt; calls that run at once each see what was left when they began, so
    that together they may pass the bound by what the last of them sample.

    Args:
        limits: the bounds.
        store: tells where the mark is left; None leaves none.
    """

    def __init__(self, limits: RolloutLimits, store: Callable[[], LightningStore | None]) -> None:
        self._limits = limits
        self._store = store
        self._attempts: OrderedDict[tuple[str, str], _Usage] = OrderedDict()

    @property
    def counts_tokens(self) -> bool:
        """True if tokens are bounded."""
        return self._limits.max_rollout_tokens is not None

    async def begin(self, attempt: CallScope, prompt_tokens: int = 0) -> int | None:
        """Count a call and its prompt; return how many tokens may be sampled, None if any number may.

        Raises:
            RolloutBudgetError: there is nothing left for it; the attempt is marked.
        """
        limits = self._limits
        if attempt is None or (limits.max_rollout_calls is None and limits.max_rollout_tokens is None):
            return None
        used = self._of(attempt)
        if limits.max_rollout_calls is not None and used.calls >= limits.max_rollout_calls:
            raise await self._refusal(
                attempt, used, f"the rollout has made all its LLM calls (max_rollout_calls={limits.max_rollout_calls})"
            )
        left = None if limits.max_rollout_tokens is None else limits.max_rollout_tokens - used.tokens - prompt_tokens
        if left is not None and left < 1:
            raise await self._refusal(
                attempt, used, f"the rollout has used up its tokens (max_rollout_tokens={limits.max_rollout_tokens})"
            )
        used.calls += 1
        used.tokens += prompt_tokens
        return left

    def spend(self, attempt: CallScope, tokens: int) -> None:
        """Count tokens of a call that has begun."""
        if attempt is not None and attempt in self._attempts:
            self._attempts[attempt].tokens += tokens

    def give_back(self, attempt: CallScope, prompt_tokens: int = 0) -> None:
        """Take back a call that came to nothing, so that trying it again costs nothing."""
        if attempt is not None and attempt in self._attempts:
            self._attempts[attempt].calls -= 1
            self._attempts[attempt].tokens -= prompt_tokens

    def _of(self, attempt: tuple[str, str]) -> _Usage:
        used = self._attempts.setdefault(attempt, _Usage())
        self._attempts.move_to_end(attempt)
        if len(self._attempts) > _MOST_BUDGETS:
            self._attempts.popitem(last=False)
        return used

    async def _refusal(self, attempt: tuple[str, str], used: _Usage, reason: str) -> RolloutBudgetError:
        store = self._store()
        if store is not None and not used.marked:
            used.marked = True
            try:
                await _mark(store, attempt, reason)
            except Exception as error:  # any store may stand behind the contract; the agent is stopped all the same
                log_failure(logger, error, f"could not mark attempt {attempt[1]} of rollout {attempt[0]} ({reason})")
            else:
                logger.warning("attempt %s of rollout %s is stopped: %s", attempt[1], attempt[0], reason)
        return RolloutBudgetError(reason)


async def _mark(store: LightningStore, attempt: tuple[str, str], reason: str) -> None:
    rollout_id, attempt_id = attempt
    sequence_id = await store.get_next_span_sequence_id(rollout_id, attempt_id)
    span = Span.from_attributes(
        attributes={
            "exception.type": ROLLOUT_BUDGET_EXCEEDED,
            "exception.message": reason,
            FAILURE_REASON: reason,
        },
        rollout_id=rollout_id,
        attempt_id=attempt_id,
        sequence_id=sequence_id,
        name=AGL_EXCEPTION,
        status=TraceStatus(status_code="ERROR", description=reason),
    )
    await store.add_span(span)


_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}")


@dataclass(frozen=True)
class CallContext:
    """The facts that the spans of one call share."""

    rollout_id: str
    attempt_id: str
    response_id: str
    model: str
    messages: Sequence[dict[str, Any]]
    tools: Sequence[dict[str, Any]]
    prompt_ids: Sequence[int]
    temperature: float
    start_time: float
    """Seconds since the epoch."""
    agent: str | None = None
    """Name of the agent that made the call, where it carries one."""
    traceparent: str | None = None
    """W3C trace context of the request, which places the span in the agent's own trace."""
    asked: Mapping[str, float | int] = field(default_factory=dict)
    """Settings of the request beside the temperature, under their names in the conventions for generative AI."""


@dataclass(frozen=True)
class RecordedAnswer:
    """One answer of a call."""

    index: int
    message: dict[str, Any]
    """The answer as the agent receives it."""
    finish_reason: str
    token_ids: Sequence[int]
    """Empty where the model's server does not tell them; then the call cannot be trained."""
    logprobs: Sequence[float]
    version: int = 0
    """Of the policy that sampled it; of several the first."""
    versions: Sequence[int] = ()
    """That of each token; empty where it is the same for all, or not known."""
    forced: Sequence[int] = ()
    """Indices of the tokens that a constraint left no choice about."""


def asked_for(sampling: SamplingParams) -> dict[str, float | int]:
    """Return what a call asked for beside the temperature: its bound, its seed, and what is not as usual."""
    settings: dict[str, float | int] = {GenAiAttributes.REQUEST_MAX_TOKENS: sampling.max_tokens}
    if sampling.seed is not None:
        settings[GenAiAttributes.REQUEST_SEED] = sampling.seed
    for name, value, usual in (
        (GenAiAttributes.REQUEST_TOP_P, sampling.top_p, 1.0),
        (GenAiAttributes.REQUEST_TOP_K, sampling.top_k, 0),
        (GenAiAttributes.REQUEST_PRESENCE_PENALTY, sampling.presence_penalty, 0.0),
        (GenAiAttributes.REQUEST_FREQUENCY_PENALTY, sampling.frequency_penalty, 0.0),
        (Attr.REPETITION_PENALTY, sampling.repetition_penalty, 1.0),
    ):
        if value != usual:
            settings[name] = value
    return settings


async def record_answer(store: LightningStore, call: CallContext, answer: RecordedAnswer, end_time: float) -> None:
    """Store the span of one answer; when this returns, the store has it.

    Raises:
        NotFoundError: the store knows no such rollout or attempt.
        RecordingError: the store failed.
    """
    try:
        sequence_id = await store.get_next_span_sequence_id(call.rollout_id, call.attempt_id)
        size = size_of([call.messages, call.tools, answer.message], LARGE)
        await store.add_span(await off_loop(size, lambda: _span(call, answer, sequence_id, end_time)))
    except ValueError as error:
        raise unknown_attempt(error) from error
    except Exception as error:  # any store may stand behind the contract; the agent must learn of it
        log_failure(logger, error, f"could not record a call of attempt {call.attempt_id} of rollout {call.rollout_id}")
        raise not_recorded(error) from error


def _span(call: CallContext, answer: RecordedAnswer, sequence_id: int, end_time: float) -> Span:
    parent = _TRACEPARENT.fullmatch(call.traceparent) if call.traceparent else None
    attributes: dict[str, Any] = {
        Attr.SYSTEM: "mini-agentic-rl",
        Attr.OPERATION: "chat",
        Attr.REQUEST_MODEL: call.model,
        Attr.REQUEST_TEMPERATURE: call.temperature,
        **call.asked,
        Attr.RESPONSE_ID: call.response_id,
        Attr.RESPONSE_MODEL: call.model,
        Attr.FINISH_REASONS: [answer.finish_reason],
        Attr.INPUT_MESSAGES: encode_in_steps(call.messages).decode(),
        Attr.OUTPUT_MESSAGES: encode_in_steps(answer.message).decode(),
        Attr.CHOICE_INDEX: answer.index,
    }
    if answer.token_ids:
        attributes |= {
            Attr.INPUT_TOKENS: len(call.prompt_ids),
            Attr.OUTPUT_TOKENS: len(answer.token_ids),
            Attr.PROMPT_TOKEN_IDS: list(call.prompt_ids),
            Attr.RESPONSE_TOKEN_IDS: list(answer.token_ids),
            Attr.POLICY_VERSION: answer.version,
        }
    if len(set(answer.versions)) > 1:
        attributes[Attr.POLICY_VERSIONS] = list(answer.versions)
    if answer.token_ids and len(answer.logprobs) == len(answer.token_ids):
        attributes[Attr.RESPONSE_LOGPROBS] = list(answer.logprobs)
    else:
        attributes[Attr.UNTRAINABLE] = (
            f"the model's server told {len(answer.token_ids)} token ids and {len(answer.logprobs)} log-probabilities"
        )
    if call.agent is not None:
        attributes[Attr.AGENT_NAME] = call.agent
    if answer.forced:
        attributes[Attr.RESPONSE_FORCED_POSITIONS] = list(answer.forced)
    if call.tools:
        attributes[Attr.TOOL_DEFINITIONS] = encode_in_steps(call.tools).decode()
    return Span.from_attributes(
        attributes=attributes,
        rollout_id=call.rollout_id,
        attempt_id=call.attempt_id,
        sequence_id=sequence_id,
        name=Attr.SPAN_NAME,
        trace_id=parent.group(1) if parent else None,
        parent_id=parent.group(2) if parent else None,
        start_time=call.start_time,
        end_time=end_time,
        status=TraceStatus(status_code="OK"),
        resource=OtelResource(
            attributes={
                LightningResourceAttributes.ROLLOUT_ID.value: call.rollout_id,
                LightningResourceAttributes.ATTEMPT_ID.value: call.attempt_id,
                LightningResourceAttributes.SPAN_SEQUENCE_ID.value: sequence_id,
            }
        ),
    )
