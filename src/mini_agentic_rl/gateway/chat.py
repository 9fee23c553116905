"""One chat request from messages to answers: render, sample, read, record."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from mini_agentic_rl.store.base import LightningStore
from mini_agentic_rl.tokens import SamplingParams, TokenDelta, TokenRequest

from . import answers
from .answer_reader import Piece
from .backend import Backend
from .chat_template import ChatRenderer
from .choice import Choice
from .constraints import ConstraintCompiler, answer_rule
from .conversations import ConversationMemory, Prompt, Scope
from .errors import BadRequestError, ContextLengthError, NotFoundError, UnavailableError
from .limits import RolloutBudgets
from .messages import plain_messages
from .protocol import ChatRequest
from .recorder import Answer, CallContext, Recorder
from .seeds import RolloutSeeds

logger = logging.getLogger(__name__)

Emit = Callable[[Choice, list[Piece], bool], None]
"""Called with the new pieces of a choice after every delta, and with True when the choice is complete and recorded."""


@dataclass(frozen=True)
class ChatTurn:
    """A request that can be sampled."""

    request: ChatRequest
    scope: Scope
    prompt: Prompt
    prompt_ids: tuple[int, ...]
    """What is sampled after: the prompt, and the start of a forced tool call where no grammar can force it."""
    token_requests: tuple[TokenRequest, ...]
    """One for each choice."""
    choices: tuple[Choice, ...]
    response_id: str
    start_time: float
    tools: list[dict[str, Any]]
    traceparent: str | None = None


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
    """Serves chat requests from one backend. Used from one event loop."""

    backend: Backend
    renderer: ChatRenderer
    model_name: str
    """The public name of the model; asking for it samples with `default_adapter`."""
    default_adapter: str | None = "default"
    store: LightningStore | None = None
    """Where calls under a rollout's URL are recorded."""
    counters: Counters = field(default_factory=Counters)
    budgets: RolloutBudgets | None = None
    """How much each attempt may ask for; None sets no bound."""

    def __post_init__(self) -> None:
        self.memory = ConversationMemory(self.renderer)
        self._constraints = ConstraintCompiler(self.renderer.tokenizer, self.renderer.eos_ids)
        self._recorder = Recorder(self.store) if self.store is not None else None
        self._seeds = RolloutSeeds(self.store) if self.store is not None else None

    @property
    def models(self) -> list[str]:
        """Names that may be asked for."""
        return list(dict.fromkeys([self.model_name, *self.backend.model_names]))

    async def prepare(self, request: ChatRequest, scope: Scope = None, traceparent: str | None = None) -> ChatTurn:
        """Turn a request into what the backend is asked. A call without a seed takes its rollout's, if that has one.

        Raises:
            BadRequestError: the messages or a field cannot be served.
            NotFoundError: unknown model, or a rollout's URL on a server without a store.
            ContextLengthError: the prompt leaves no room for an answer.
            RolloutBudgetError: the attempt has used up what it may ask for.
        """
        adapter = self._adapter(request.model)
        if scope is not None and self._recorder is None:
            raise NotFoundError("this server records no rollouts: start it with a store", code="no_store")
        messages = plain_messages(request.messages)
        tools = request.offered_tools
        prompt = self.memory.prompt(scope, messages, tools)
        template = self.renderer.template
        rule = answer_rule(request, self.renderer.tool_format, template.tags, template.thought_begun)
        constraint = None if rule is None else await self._constraints.compile(rule)
        prefix = ""
        if request.must_call and rule is None:
            prefix = self.renderer.forced_prefix(request.must_call_name)
        one_call = request.one_call and constraint is None
        prompt_ids = (*prompt.ids, *self.renderer.encode(prefix)) if prefix else prompt.ids
        room = self.backend.context_length - len(prompt_ids)
        if room < 1:
            raise ContextLengthError(len(prompt_ids), self.backend.context_length)
        left = None if self.budgets is None else await self.budgets.begin(scope, len(prompt_ids))
        if left is not None:
            room = max(1, min(room, left // request.choices))
        seed = request.seed
        if seed is None and self._seeds is not None:
            seed = await self._seeds.next(scope)
        response_id = f"chatcmpl-{uuid.uuid4().hex}"
        indices = range(request.choices)
        return ChatTurn(
            request=request,
            scope=scope,
            prompt=prompt,
            prompt_ids=prompt_ids,
            token_requests=tuple(
                TokenRequest(
                    prompt_ids,
                    self._sampling(request, room, None if seed is None else seed + index),
                    adapter,
                    f"{response_id}/{index}",
                    incremental=bool(request.stream or request.stop_strings or one_call),
                    constraint=constraint,
                )
                for index in indices
            ),
            choices=tuple(
                Choice(
                    index,
                    self.renderer.decoder(bool(tools)),
                    end_ids=self.renderer.eos_ids,
                    stops=request.stop_strings,
                    reader=self.renderer.reader(bool(tools)),
                    prefix=prefix,
                    streamed=bool(request.stream),
                    one_call=one_call,
                )
                for index in indices
            ),
            response_id=response_id,
            start_time=time.time(),
            tools=tools,
            traceparent=traceparent,
        )

    async def run(self, turn: ChatTurn, emit: Emit | None = None) -> None:
        """Sample all choices of a turn, record and remember each as it ends.

        Args:
            turn: the prepared request.
            emit: told of everything as it comes; None collects silently.

        Raises:
            GatewayError: of the backend or the recorder.
            asyncio.CancelledError: the client went away; what was sampled is recorded with reason "cancelled".
        """
        self.counters.requests += 1
        self.counters.active += 1
        self.counters.prompt_tokens += len(turn.prompt_ids)
        try:
            await _all(
                [
                    self._run_choice(turn, choice, request, emit)
                    for choice, request in zip(turn.choices, turn.token_requests, strict=True)
                ]
            )
            self.counters.completed += 1
        except asyncio.CancelledError:
            self.counters.cancelled += 1
            raise
        except Exception:
            self.counters.failed += 1
            raise
        finally:
            self.counters.active -= 1
            self._count_tokens(turn)

    def response(self, turn: ChatTurn) -> dict[str, Any]:
        """The body of a complete answer."""
        request = turn.request
        body = {
            **answers.head(
                "chat.completion", turn.response_id, int(turn.start_time), request.model, turn.choices[0].version
            ),
            "choices": [
                answers.final_choice(
                    self.renderer.tokenizer,
                    choice,
                    with_logprobs=bool(request.logprobs),
                    with_ids=bool(request.return_token_ids),
                )
                for choice in turn.choices
            ],
            "usage": answers.usage(len(turn.prompt_ids), turn.choices),
        }
        if request.return_token_ids:
            body["prompt_token_ids"] = list(turn.prompt_ids)
        return body

    def _count_tokens(self, turn: ChatTurn) -> None:
        sampled = sum(len(choice.token_ids) for choice in turn.choices)
        self.counters.completion_tokens += sampled
        self.counters.cached_tokens += max(choice.cached_tokens for choice in turn.choices)
        if self.budgets is not None and sampled:
            self.budgets.spend(turn.scope, sampled)
        elif self.budgets is not None:
            self.budgets.give_back(turn.scope, len(turn.prompt_ids))

    async def _run_choice(self, turn: ChatTurn, choice: Choice, request: TokenRequest, emit: Emit | None) -> None:
        stream = self.backend.complete(request)
        try:
            await _sample(stream, choice, emit)
        except asyncio.CancelledError:
            await self._record_cancelled(turn, choice)
            raise
        finally:
            await stream.aclose()
        if choice.finish_reason == "cancelled":
            await self._record_cancelled(turn, choice)
            if choice.failure:
                raise BadRequestError(f"the answer cannot take the form that was asked for: {choice.failure}")
            raise UnavailableError("the model stopped before the answer was complete; try again")
        await self._record(turn, choice)
        (message,) = plain_messages([choice.message()])
        self.memory.remember(turn.scope, turn.prompt, turn.prompt_ids, choice.token_ids, message)
        if emit is not None:
            emit(choice, [], True)

    async def _record_cancelled(self, turn: ChatTurn, choice: Choice) -> None:
        if choice.finish_reason is None:
            choice.finish("cancelled")
        if choice.token_ids:
            try:
                await self._record(turn, choice)
            except Exception:  # nobody is left to be told; the recorder's error must not replace the cancellation
                logger.exception("could not record a cancelled call (scope %s)", turn.scope)

    async def _record(self, turn: ChatTurn, choice: Choice) -> None:
        if turn.scope is None or self._recorder is None:
            return
        rollout_id, attempt_id = turn.scope
        call = CallContext(
            rollout_id=rollout_id,
            attempt_id=attempt_id,
            response_id=turn.response_id,
            model=turn.request.model,
            messages=turn.request.messages,
            tools=turn.tools,
            prompt_ids=turn.prompt_ids,
            temperature=turn.token_requests[choice.index].sampling.temperature,
            start_time=turn.start_time,
            traceparent=turn.traceparent,
        )
        answer = Answer(
            index=choice.index,
            message=choice.message(),
            finish_reason=choice.finish_reason or "cancelled",
            token_ids=choice.token_ids,
            logprobs=choice.logprobs,
            version=choice.version,
            forced=choice.forced,
        )
        await self._recorder.record(call, answer, time.time())

    def _adapter(self, model: str) -> str | None:
        if model == self.model_name:
            return self.default_adapter
        names = list(self.backend.model_names)
        if model not in names:
            raise NotFoundError(
                f"there is no model {model!r} here; ask for one of: {', '.join(self.models)}",
                param="model",
                code="model_not_found",
            )
        return None if model == names[0] else model

    def _sampling(self, request: ChatRequest, room: int, seed: int | None) -> SamplingParams:
        bias = request.logit_bias or {}
        vocabulary = len(self.renderer.tokenizer)
        for token_id in bias:
            if not 0 <= token_id < vocabulary:
                raise BadRequestError(
                    f"logit_bias: token id {token_id} is outside of the vocabulary of {vocabulary}", param="logit_bias"
                )
        wanted = request.max_completion_tokens or request.max_tokens or room
        return SamplingParams(
            temperature=1.0 if request.temperature is None else request.temperature,
            top_p=1.0 if request.top_p is None else request.top_p,
            top_k=max(request.top_k or 0, 0),
            min_p=request.min_p or 0.0,
            max_tokens=min(wanted, room),
            seed=seed,
            stop_token_ids=() if request.ignore_eos else self.renderer.eos_ids,
            top_logprobs=(request.top_logprobs or 0) if request.logprobs else 0,
            logit_bias=bias,
            presence_penalty=request.presence_penalty or 0.0,
            frequency_penalty=request.frequency_penalty or 0.0,
        )


async def _sample(stream: AsyncGenerator[TokenDelta, None], choice: Choice, emit: Emit | None) -> None:
    async for delta in stream:
        pieces = choice.take(delta)
        if emit is not None:
            emit(choice, pieces, False)
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
