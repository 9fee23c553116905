"""Chat requests from prompts to answers: sample, read, record, remember."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field

from ...http import BadRequestError
from ...samplers import Sampler
from ...store import LightningStore
from ...tokens import CompletionRecord, TokenDelta, TokenRequest
from ..errors import RecordingError, UnavailableError
from ..limits import GrammarLimits, RolloutBudgets
from ..render import AnswerPart, ChatRenderer
from .prepare import Preparation, PreparedChat
from .read import Choice
from .record import CallContext, RecordedAnswer, asked_for, record_answer
from .remember import ConversationMemory

logger = logging.getLogger(__name__)

Emit = Callable[[Choice, list[AnswerPart], bool], None]
"""Called with the new parts of a choice after every delta, and with True when the choice is complete and recorded."""


@dataclass
class Counters:
    """Requests since the start."""

    requests: int = 0
    active: int = 0
    completed: int = 0
    cancelled: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0


@dataclass
class ChatService:
    """Serves chat requests from one sampler. Used from one event loop."""

    sampler: Sampler
    renderer: ChatRenderer
    model_name: str
    """The public name of the model; asking for it samples with `default_adapter`."""
    default_adapter: str | None = "default"
    store: LightningStore | None = None
    """Store in which calls under a rollout's URL are recorded."""
    counters: Counters = field(default_factory=Counters)
    budgets: RolloutBudgets | None = None
    """Bound on what each attempt may ask for; None sets none."""
    grammars: GrammarLimits = field(default_factory=GrammarLimits)
    """Bound on what the form of an answer may take to be compiled."""

    def __post_init__(self) -> None:
        self.memory = ConversationMemory(self.renderer)
        self.preparation = Preparation(
            self.sampler,
            self.renderer,
            self.memory,
            self.model_name,
            self.default_adapter,
            self.store,
            self.budgets,
            self.grammars,
        )

    def close(self) -> None:
        """End what runs beside the server; it is started again when it is needed."""
        self.preparation.close()

    async def run(self, prepared: PreparedChat, emit: Emit | None = None) -> None:
        """Sample all choices of a request, record and remember each as it ends.

        Args:
            prepared: the request.
            emit: told of everything as it comes; None collects silently.

        Raises:
            HttpError: of the sampler or the recorder.
            asyncio.CancelledError: the client went away; what was sampled is recorded with reason "cancelled".
        """
        self.counters.requests += 1
        self.counters.active += 1
        self.counters.prompt_tokens += len(prepared.prompt_ids)
        try:
            await _all(
                [
                    self._run_choice(prepared, choice, request, emit)
                    for choice, request in zip(prepared.choices, prepared.token_requests, strict=True)
                ]
            )
            self.counters.completed += 1
        except asyncio.CancelledError:
            self.counters.cancelled += 1
            raise
        except Exception:  # counted, whatever it is, and handed on
            self.counters.failed += 1
            raise
        finally:
            self.counters.active -= 1
            self._count_tokens(prepared)

    def _count_tokens(self, prepared: PreparedChat) -> None:
        sampled = sum(len(choice.token_ids) for choice in prepared.choices)
        self.counters.completion_tokens += sampled
        self.counters.cached_tokens += max(choice.cached_tokens for choice in prepared.choices)
        if self.budgets is not None and sampled:
            self.budgets.spend(prepared.scope, sampled)
        elif self.budgets is not None:
            self.budgets.give_back(prepared.scope, len(prepared.prompt_ids))

    async def _run_choice(
        self, prepared: PreparedChat, choice: Choice, request: TokenRequest, emit: Emit | None
    ) -> None:
        stream = self.sampler.complete(request) if prepared.recorded is None else _replay(prepared.recorded)
        try:
            await _sample(stream, choice, emit)
        except asyncio.CancelledError:
            await self._record_cancelled(prepared, choice)
            raise
        finally:
            await stream.aclose()
        if choice.finish_reason == "cancelled":
            await self._record_cancelled(prepared, choice)
            if choice.failure:
                raise BadRequestError(f"the answer cannot take the form that was asked for: {choice.failure}")
            raise UnavailableError("the model stopped before the answer was complete; try again")
        await self._record(prepared, choice)
        message = prepared.message(choice)
        if message is not None:
            self.memory.remember(prepared.scope, prepared.prompt, prepared.prompt_ids, choice.token_ids, message)
        if emit is not None:
            emit(choice, [], True)

    async def _record_cancelled(self, prepared: PreparedChat, choice: Choice) -> None:
        if choice.finish_reason is None:
            choice.finish("cancelled")
        if choice.token_ids:
            try:
                await self._record(prepared, choice)
            except RecordingError:  # logged where it was raised; nobody is left to be told
                pass
            except Exception:  # as little may any other error replace the cancellation
                logger.exception("could not record a cancelled call (scope %s)", prepared.scope)

    async def _record(self, prepared: PreparedChat, choice: Choice) -> None:
        if prepared.scope is None or self.store is None:
            return
        rollout_id, attempt_id = prepared.scope
        call = CallContext(
            rollout_id=rollout_id,
            attempt_id=attempt_id,
            response_id=prepared.response_id,
            model=prepared.request.model,
            messages=prepared.request.messages,
            tools=prepared.tools,
            prompt_ids=prepared.prompt_ids,
            temperature=prepared.token_requests[choice.index].sampling.temperature,
            start_time=prepared.start_time,
            agent=prepared.caller.agent,
            traceparent=prepared.caller.traceparent,
            asked=asked_for(prepared.token_requests[choice.index].sampling),
        )
        answer = RecordedAnswer(
            index=choice.index,
            message=choice.message(),
            finish_reason=choice.finish_reason or "cancelled",
            token_ids=choice.token_ids,
            logprobs=choice.logprobs,
            version=choice.version,
            versions=choice.versions,
            forced=choice.forced,
        )
        await record_answer(self.store, call, answer, time.time())


async def _replay(record: CompletionRecord) -> AsyncGenerator[TokenDelta, None]:
    """Yield the tokens of a recorded call, each marked as forced: context to the learner, never a term of a loss."""
    yield TokenDelta(
        token_ids=tuple(int(token) for token in record.output_ids),
        logprobs=tuple(float(logprob) for logprob in record.logprobs),
        forced=(True,) * record.output_ids.size,
        finish_reason=record.finish_reason,
        version=record.version,
    )


async def _sample(stream: AsyncGenerator[TokenDelta, None], choice: Choice, emit: Emit | None) -> None:
    async for delta in stream:
        parts = choice.take(delta)
        if emit is not None:
            emit(choice, parts, False)
        if choice.finish_reason is not None:
            return
    choice.finish("cancelled")


async def _all(jobs: list[Awaitable[None]]) -> None:
    """Wait for all; when one fails or the caller is cancelled, the others are cancelled and waited for."""
    if len(jobs) == 1:
        await jobs[0]
        return
    tasks = [asyncio.ensure_future(job) for job in jobs]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
