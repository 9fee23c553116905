"""Limits on what each attempt of a rollout may ask of the model, and the mark that one leaves which wants more.

The refusal is final: its status is 403, which the SDKs do not try again. The first one is recorded as an exception span
of the attempt, so that its reason is in the store even where the agent swallows the error.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from pydantic import Field
from pydantic.config import JsonDict

from ..config import Settings
from ..errors import log_failure
from ..http import RequestLimits
from ..semconv import AGL_EXCEPTION, FAILURE_REASON, ROLLOUT_BUDGET_EXCEEDED
from ..store import LightningStore
from ..types import Span, TraceStatus
from .errors import RolloutBudgetError

logger = logging.getLogger(__name__)

_REMEMBERED = 65_536

Attempt = tuple[str, str]
"""(rollout id, attempt id)."""


_ROLLOUTS: JsonDict = {"panel": "Limits of a rollout"}
_REQUESTS: JsonDict = {"panel": "Limits of requests"}


class RolloutLimits(Settings):
    """Bounds on what one attempt of a rollout may ask of the model; a further attempt begins anew."""

    max_rollout_calls: int | None = Field(default=None, ge=1, json_schema_extra=_ROLLOUTS)
    """At most this many LLM calls in one attempt of a rollout; the next one is refused. Without it there is no
    bound."""
    max_rollout_tokens: int | None = Field(default=None, ge=1, json_schema_extra=_ROLLOUTS)
    """At most this many tokens in all LLM calls of one attempt together, prompts and answers; an answer that would pass
    it is cut short, the next call is refused. Without it there is no bound."""


class GrammarLimits(Settings):
    """Bounds on what the form of an answer may take to be compiled: its JSON schemas, and those of its tools."""

    max_grammar_seconds: float = Field(default=1.0, gt=0, le=60, json_schema_extra=_REQUESTS)
    """Refuse the form of an answer (JSON schemas) that takes more processor time than this to compile."""
    max_grammar_mib: int = Field(default=256, ge=16, json_schema_extra=_REQUESTS)
    """Refuse the form of an answer that takes more memory than this to compile (Linux)."""


class GatewayLimits(RolloutLimits, RequestLimits, GrammarLimits):
    """All bounds of a gateway: `MiniLLMServer(limits=…)`, `LLMProxy(limits=…)`, `MiniGRPO(limits=…)`."""

    when_paused: Literal["wait", "refuse"] = "wait"
    """Treatment of a request that arrives while the weights are updated: it waits, or is told to come again."""


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
        self._attempts: OrderedDict[Attempt, _Usage] = OrderedDict()

    @property
    def counts_tokens(self) -> bool:
        """True if tokens are bounded."""
        return self._limits.max_rollout_tokens is not None

    async def begin(self, attempt: Attempt | None, prompt_tokens: int = 0) -> int | None:
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

    def spend(self, attempt: Attempt | None, tokens: int) -> None:
        """Count tokens of a call that has begun."""
        if attempt is not None and attempt in self._attempts:
            self._attempts[attempt].tokens += tokens

    def give_back(self, attempt: Attempt | None, prompt_tokens: int = 0) -> None:
        """Take back a call that came to nothing, so that trying it again costs nothing."""
        if attempt is not None and attempt in self._attempts:
            self._attempts[attempt].calls -= 1
            self._attempts[attempt].tokens -= prompt_tokens

    def _of(self, attempt: Attempt) -> _Usage:
        used = self._attempts.setdefault(attempt, _Usage())
        self._attempts.move_to_end(attempt)
        if len(self._attempts) > _REMEMBERED:
            self._attempts.popitem(last=False)
        return used

    async def _refusal(self, attempt: Attempt, used: _Usage, reason: str) -> RolloutBudgetError:
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


async def _mark(store: LightningStore, attempt: Attempt, reason: str) -> None:
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
