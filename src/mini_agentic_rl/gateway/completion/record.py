"""Attempts of rollouts: looked up in the store, held to their budgets, and recorded as spans.

An attempt is looked up once, before its first call. A rollout with a seed (`SAMPLING_SEED` in its metadata) gives each
call without a seed one that depends on the position of the call in the attempt. The first calls of a rollout with an
expert prefix (`EXPERT_PREFIX`) are answered with recorded calls.

A call beyond the budget is refused with status 403, which SDKs do not retry. The first refusal is recorded as an
exception span of the attempt, so that the store has its reason even if the agent swallows the error.

Each answer becomes one span with the exact tokens. It is stored, in one write, before the answer is complete.
"""

from __future__ import annotations

import hashlib
import logging
import re
import time
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
from ...types import OtelResource, Rollout, Span, TraceStatus
from ..dialects import Caller, CallScope
from ..errors import NotFoundError, RecordingError, RolloutBudgetError
from ..settings import RolloutLimits

logger = logging.getLogger(__name__)

TOKENS_HELP: Final = "Tokens of prompts, those of them found in a cache, and tokens sampled."
"""Help of the metric that counts tokens."""
_MAX_ATTEMPTS: Final = 65_536
"""Attempts that are known; the least recently used is dropped first."""


def _unknown_attempt(reason: object) -> NotFoundError:
    return NotFoundError(f"the call cannot be recorded: {reason}", code="rollout_not_found")


@dataclass(eq=False)
class Attempt:
    """The calls of an attempt: their seeds, the recorded calls that answer them, and what they have used of its budget.

    A call is counted with its prompt when it begins. Concurrent calls each see the budget at their beginning, so that
    together they may exceed it by their sampled tokens.
    """

    limits: RolloutLimits
    """The bounds of its budget."""
    seed: int | None = None
    """The seed of the attempt; None if its rollout has none."""
    prefix: list[CompletionRecord] = field(default_factory=list)
    """Recorded calls that answer the next calls."""
    scope: CallScope = None
    store: LightningStore | None = None
    """Has a span of the first refusal."""
    _seeded_calls: int = 0
    _calls: int = 0
    _tokens: int = 0
    _refused: bool = False

    def next_seed(self) -> int | None:
        """Return the seed of the next call; None if the rollout has none."""
        if self.seed is None:
            return None
        text = f"{self.seed}/{self._seeded_calls}"
        self._seeded_calls += 1
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1

    def next_recorded(self, prompt_ids: Sequence[int]) -> CompletionRecord | None:
        """Return the recorded call that answers the next call; None if it must be sampled.

        A prompt with other tokens than the recorded one has left the recorded conversation, whose rest is dropped.
        """
        if not self.prefix:
            return None
        if not np.array_equal(self.prefix[0].prompt_ids, np.asarray(prompt_ids, np.int64)):
            self.prefix.clear()
            return None
        return self.prefix.pop(0)

    async def begin(self, prompt_tokens: int = 0) -> int | None:
        """Count a call and its prompt; return the maximum number of sampled tokens, None without a bound.

        Raises:
            RolloutBudgetError: the budget is used up. The first refusal is recorded.
        """
        most_calls, most_tokens = self.limits.max_rollout_calls, self.limits.max_rollout_tokens
        if most_calls is not None and self._calls >= most_calls:
            raise await self._refusal(f"the rollout has made all its LLM calls (max_rollout_calls={most_calls})")
        left = None if most_tokens is None else most_tokens - self._tokens - prompt_tokens
        if left is not None and left < 1:
            raise await self._refusal(f"the rollout has used up its tokens (max_rollout_tokens={most_tokens})")
        self._calls += 1
        self._tokens += prompt_tokens
        return left

    def spend(self, tokens: int) -> None:
        """Count tokens of a call that has begun."""
        self._tokens += tokens

    def give_back(self, prompt_tokens: int = 0) -> None:
        """Undo the counting of a call that failed, so that a retry costs nothing."""
        self._calls -= 1
        self._tokens -= prompt_tokens

    async def _refusal(self, reason: str) -> RolloutBudgetError:
        if self.store is not None and self.scope is not None and not self._refused:
            self._refused = True
            rollout_id, attempt_id = self.scope
            span = Span.from_attributes(
                attributes={
                    "exception.type": ROLLOUT_BUDGET_EXCEEDED,
                    "exception.message": reason,
                    FAILURE_REASON: reason,
                },
                rollout_id=rollout_id,
                attempt_id=attempt_id,
                name=AGL_EXCEPTION,
                status=TraceStatus(status_code="ERROR", description=reason),
            )
            try:
                await self.store.add_span(span)
            except Exception as error:  # stores raise anything; the agent is stopped anyway
                log_failure(logger, error, f"could not mark attempt {attempt_id} of rollout {rollout_id} ({reason})")
            else:
                logger.warning("attempt %s of rollout %s is stopped: %s", attempt_id, rollout_id, reason)
        return RolloutBudgetError(reason)


class RolloutAttempts:
    """The attempts that make calls, each looked up in the store once. Used from one event loop.

    Args:
        limits: the bounds of an attempt.
        store: returns the store of the rollouts; None if calls are not recorded.
        prefixes: recorded calls by the name in a rollout's metadata (`EXPERT_PREFIX`).
    """

    def __init__(
        self,
        limits: RolloutLimits,
        store: Callable[[], LightningStore | None],
        prefixes: Mapping[str, Sequence[CompletionRecord]] | None = None,
    ) -> None:
        self.limits = limits
        self._store = store
        self._prefixes = {} if prefixes is None else prefixes
        self._attempts: OrderedDict[tuple[str, str], Attempt] = OrderedDict()

    async def find(self, scope: CallScope) -> Attempt:
        """Return an attempt; one without bounds for a call outside of rollouts.

        Raises:
            NotFoundError: there is no such rollout or attempt, or no store.
            BadRequestError: the rollout's seed is not an integer.
            RecordingError: the store does not answer.
        """
        if scope is None:
            return Attempt(RolloutLimits())
        store = self._store()
        if store is None:
            message = "this server records no rollouts: ask it at /v1, or start it with a store"
            raise NotFoundError(message, code="no_store")
        if scope not in self._attempts:
            attempt = await self._look_up(store, *scope)
            self._attempts.setdefault(scope, attempt)  # a concurrent call may have found it first
            if len(self._attempts) > _MAX_ATTEMPTS:
                self._attempts.popitem(last=False)
        self._attempts.move_to_end(scope)
        return self._attempts[scope]

    async def _look_up(self, store: LightningStore, rollout_id: str, attempt_id: str) -> Attempt:
        try:
            rollout = await store.get_rollout_by_id(rollout_id)
            attempts = [] if rollout is None else await store.query_attempts(rollout_id)
        except Exception as error:  # stores raise anything; the agent must see it
            log_failure(logger, error, f"could not look up attempt {attempt_id} of rollout {rollout_id}")
            raise RecordingError from error
        if rollout is None:
            raise _unknown_attempt(f"there is no rollout {rollout_id!r}")
        attempt = next((attempt for attempt in attempts if attempt.attempt_id == attempt_id), None)
        if attempt is None:
            raise _unknown_attempt(f"rollout {rollout_id!r} has no attempt {attempt_id!r}")
        return Attempt(
            self.limits,
            seed=_seed_of(rollout, attempt.sequence_id),
            prefix=list(self._prefixes.get(str(rollout.metadata.get(EXPERT_PREFIX)), ())),
            scope=(rollout_id, attempt_id),
            store=store,
        )


def _seed_of(rollout: Rollout, sequence_id: int) -> int | None:
    seed = rollout.metadata.get(SAMPLING_SEED)
    if seed is None:
        return None
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise BadRequestError(
            f"the metadata of rollout {rollout.rollout_id!r} has {SAMPLING_SEED}={seed!r}: expected an integer",
            code="rollout_seed",
        )
    return seed + sequence_id - 1 if rollout.config.max_attempts > 1 else seed


_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}")


@dataclass(frozen=True)
class RecordedAnswer:
    """One answer to a call, as it is recorded."""

    caller: Caller
    """The sender; it has a scope. The span becomes part of the trace in its `traceparent`."""
    response_id: str
    model: str
    messages: Sequence[dict[str, Any]]
    tools: Sequence[dict[str, Any]]
    settings: Mapping[str, float | int]
    """Sampling settings, under their names in the OpenTelemetry conventions for generative AI."""
    start_time: float
    """Seconds since the epoch."""
    index: int
    """Index among the answers to the call."""
    message: dict[str, Any]
    """The answer as the agent receives it."""
    finish_reason: str
    prompt_ids: Sequence[int]
    token_ids: Sequence[int]
    """Empty if the server does not report them; then the call cannot be trained."""
    logprobs: Sequence[float]
    version: int = 0
    """Policy version of the first token."""
    versions: Sequence[int] = ()
    """Policy version of each token; empty if it is unknown or the same for all."""
    forced: Sequence[int] = ()
    """Indices of the tokens that a constraint determined."""


def sampling_attributes(sampling: SamplingParams) -> dict[str, float | int]:
    """Return the span attributes of sampling settings: temperature, length bound, seed, and other values than the
    default."""
    settings: dict[str, float | int] = {
        Attr.REQUEST_TEMPERATURE: sampling.temperature,
        GenAiAttributes.REQUEST_MAX_TOKENS: sampling.max_tokens,
    }
    if sampling.seed is not None:
        settings[GenAiAttributes.REQUEST_SEED] = sampling.seed
    for name, value, default in (
        (GenAiAttributes.REQUEST_TOP_P, sampling.top_p, 1.0),
        (GenAiAttributes.REQUEST_TOP_K, sampling.top_k, 0),
        (GenAiAttributes.REQUEST_PRESENCE_PENALTY, sampling.presence_penalty, 0.0),
        (GenAiAttributes.REQUEST_FREQUENCY_PENALTY, sampling.frequency_penalty, 0.0),
        (Attr.REPETITION_PENALTY, sampling.repetition_penalty, 1.0),
    ):
        if value != default:
            settings[name] = value
    return settings


async def record_answer(store: LightningStore, answer: RecordedAnswer) -> None:
    """Store the span of an answer that ends now, in one write, with the next sequence id of the attempt.

    Raises:
        NotFoundError: there is no such rollout or attempt.
        RecordingError: the store failed.
    """
    try:
        size = size_of([answer.messages, answer.tools, answer.message], LARGE)
        end_time = time.time()
        await store.add_span(await off_loop(size, lambda: _span(answer, end_time)))
    except ValueError as error:
        raise _unknown_attempt(error) from error
    except Exception as error:  # stores raise anything; the agent must see it
        rollout_id, attempt_id = answer.caller.scope or (None, None)
        log_failure(logger, error, f"could not record a call of rollout {rollout_id}, attempt {attempt_id}")
        raise RecordingError from error


def _span(answer: RecordedAnswer, end_time: float) -> Span:
    caller = answer.caller
    assert caller.scope is not None
    rollout_id, attempt_id = caller.scope
    parent = _TRACEPARENT.fullmatch(caller.traceparent) if caller.traceparent else None
    attributes: dict[str, Any] = {
        Attr.SYSTEM: "mini-agentic-rl",
        Attr.OPERATION: "chat",
        Attr.REQUEST_MODEL: answer.model,
        **answer.settings,
        Attr.RESPONSE_ID: answer.response_id,
        Attr.RESPONSE_MODEL: answer.model,
        Attr.FINISH_REASONS: [answer.finish_reason],
        Attr.INPUT_MESSAGES: encode_in_steps(answer.messages).decode(),
        Attr.OUTPUT_MESSAGES: encode_in_steps(answer.message).decode(),
        Attr.CHOICE_INDEX: answer.index,
    }
    if answer.token_ids:
        attributes |= {
            Attr.INPUT_TOKENS: len(answer.prompt_ids),
            Attr.OUTPUT_TOKENS: len(answer.token_ids),
            Attr.PROMPT_TOKEN_IDS: list(answer.prompt_ids),
            Attr.RESPONSE_TOKEN_IDS: list(answer.token_ids),
            Attr.POLICY_VERSION: answer.version,
        }
    if len(set(answer.versions)) > 1:
        attributes[Attr.POLICY_VERSIONS] = list(answer.versions)
    if answer.token_ids and len(answer.logprobs) == len(answer.token_ids):
        attributes[Attr.RESPONSE_LOGPROBS] = list(answer.logprobs)
    else:
        ids, logprobs = len(answer.token_ids), len(answer.logprobs)
        attributes[Attr.UNTRAINABLE] = f"the model's server reported {ids} token ids and {logprobs} log-probabilities"
    if caller.agent is not None:
        attributes[Attr.AGENT_NAME] = caller.agent
    if answer.forced:
        attributes[Attr.RESPONSE_FORCED_POSITIONS] = list(answer.forced)
    if answer.tools:
        attributes[Attr.TOOL_DEFINITIONS] = encode_in_steps(answer.tools).decode()
    resource = {
        LightningResourceAttributes.ROLLOUT_ID.value: rollout_id,
        LightningResourceAttributes.ATTEMPT_ID.value: attempt_id,
    }
    return Span.from_attributes(
        attributes=attributes,
        rollout_id=rollout_id,
        attempt_id=attempt_id,
        name=Attr.SPAN_NAME,
        trace_id=parent.group(1) if parent else None,
        parent_id=parent.group(2) if parent else None,
        start_time=answer.start_time,
        end_time=end_time,
        status=TraceStatus(status_code="OK"),
        resource=OtelResource(attributes=resource),
    )
