"""The backend of the gateway that samples: prepare, sample, read, record, remember and answer each chat request.

A streamed call is sampled in a task of its own, which puts events into a queue. If the client leaves, the task is
cancelled; it records the beginning of the answer before it ends.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ...http import BadRequestError, MetricFamily, encode_in_steps, off_loop
from ...tokens import CompletionRecord, TokenDelta, TokenRequest
from ..dialects import (
    Caller,
    CallScope,
    ChatRequest,
    CompletionsDialect,
    Dialect,
    Exchange,
    StreamOptions,
    parse_chat_request,
    shared_dialects,
)
from ..errors import RecordingError, UnavailableError
from ..render.decoding import AnswerPart, Thought
from ..render.renderer import ChatRenderer
from ..tool_formats import ToolCall
from .choice import Choice
from .prepare import Preparation, PreparedChat
from .record import TOKENS_HELP, RecordedAnswer, record_answer, sampling_attributes

logger = logging.getLogger(__name__)

_TOKEN_CHARACTERS: Final = 8
"""Estimated characters of a body per token."""
_LOGPROB_CHARACTERS: Final = 64
"""Estimated characters of a body per log-probability."""
_GAUGES: Final = ("attempts", "tokens")
"""Counters of `ConversationMemory` that may decrease."""


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


class ChatService(Preparation):
    """A `Backend` that answers chat requests from one sampler. Used from one event loop."""

    title = "mini-agentic-rl gateway"
    about = (
        "An OpenAI-compatible endpoint on a model in this process: set a client's base_url to this address with /v1. "
        "Calls under /rollout/ID/attempt/ID/v1 are recorded for training. Where keys are set, requests carry "
        "'Authorization: Bearer KEY' or 'x-api-key: KEY'."
    )
    owner = "mini-agentic-rl"

    def __init__(self, *arguments: Any) -> None:
        """Arguments as `Preparation`."""
        super().__init__(*arguments)
        self.counters = Counters()
        self.dialects: Sequence[Dialect] = [*shared_dialects(), CompletionsDialect()]

    @property
    def records(self) -> bool:
        return self.store is not None

    @property
    def context_length(self) -> int:
        return self.sampler.context_length

    def parse(self, dialect: Dialect, body: dict[str, Any], exchange: Exchange) -> tuple[ChatRequest, Sequence[str]]:
        return parse_chat_request(exchange.chat), dialect.left_out(body)

    async def begin(self, chat: ChatRequest, exchange: Exchange, caller: Caller, key: str) -> ChatCall:
        call = ChatCall(self, await self.prepare(chat, caller, key), exchange)
        if call.streams:
            await call.begin()
        return call

    def forget(self, scope: CallScope) -> None:
        self.memory.forget(scope)

    def facts(self) -> dict[str, Any]:
        return {
            "model": self.model_name,
            "models": self.models,
            "context_length": self.context_length,
            "requests": vars(self.counters),
            "conversations": self.memory.counters(),
        }

    def metric_counters(self) -> Iterable[MetricFamily]:
        counters, conversations = self.counters, self.memory.counters()
        tokens = {
            "prompt": counters.prompt_tokens,
            "cached": counters.cached_tokens,
            "completion": counters.completion_tokens,
        }
        prompts = {kind: count for kind, count in conversations.items() if kind not in (*_GAUGES, "forked")}
        yield MetricFamily.by_kind("tokens", TOKENS_HELP, tokens)
        yield MetricFamily.by_kind(
            "prompts", "Prompts that began, continued or forked a conversation, and why.", prompts
        )

    def metric_gauges(self) -> Iterable[MetricFamily]:
        load = self.sampler.load()
        remembered = {kind: count for kind, count in self.memory.counters().items() if kind in _GAUGES}
        yield MetricFamily.by_kind("sequences", "Answers being sampled, and waiting for their turn.", load.sequences)
        yield MetricFamily.by_kind(
            "kv_blocks", "Blocks of the key/value cache: in use, kept for reuse, free.", load.kv_blocks
        )
        yield MetricFamily.by_kind(
            "remembered", "Attempts whose conversations are remembered, and their tokens.", remembered
        )


class ChatCall:
    """One prepared request and its answer.

    Args:
        service: the backend.
        prepared: the request.
        exchange: translates the answer to the dialect of the request.
    """

    def __init__(self, service: ChatService, prepared: PreparedChat, exchange: Exchange) -> None:
        self._service = service
        self._prepared = prepared
        self._exchange = exchange
        self._request = prepared.request
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        """Server-sent events; None at the end."""
        self._task: asyncio.Task[None] | None = None
        self._first: bytes | None = b""
        self._head: dict[str, Any] = {}
        """Fields that all chunks share."""
        self._started: set[int] = set()
        self._sent_tokens = [0] * len(prepared.choices)
        self._sent_calls = [0] * len(prepared.choices)
        options = prepared.request.stream_options or StreamOptions()
        self._with_usage = options.include_usage
        self._usage_always = options.include_usage and options.continuous_usage_stats
        self._usage_next = exchange.counts_first or self._usage_always
        """True if the next chunk reports the token counts."""

    @property
    def streams(self) -> bool:
        return bool(self._request.stream)

    @property
    def left_out(self) -> Sequence[str]:
        return self._prepared.left_out

    async def whole(self) -> bytes:
        await self._run()
        request = self._request
        each = _TOKEN_CHARACTERS
        if request.logprobs:
            each += _LOGPROB_CHARACTERS * (1 + (request.top_logprobs or 0))
        size = each * sum(len(choice.token_ids) for choice in self._prepared.choices)
        return await off_loop(size, lambda: encode_in_steps(self._exchange.answer(self._completion())))

    async def begin(self) -> None:
        """Start sampling a stream and wait for its first event, so that an early failure has its HTTP status.

        Raises:
            HttpError: the call failed before anything was sampled.
        """
        self._task = asyncio.create_task(self._stream())
        try:
            self._first = await self._queue.get()
            if self._first is None:
                await self._task
        except BaseException:
            await self.end()
            raise

    async def events(self) -> AsyncGenerator[bytes, None]:
        assert self._task is not None, "begin() comes first"
        events = self._first
        while events is not None:
            ready = [events]
            while events is not None and not self._queue.empty():
                events = self._queue.get_nowait()
                ready.append(events or b"")
            yield b"".join(ready)
            events = None if events is None else await self._queue.get()
        await self._task

    async def end(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _stream(self) -> None:
        try:
            await self._run()
            if self._with_usage:
                self._put([], usage=self._usage())
            self._queue.put_nowait(self._exchange.end())
        finally:
            self._queue.put_nowait(None)

    async def _run(self) -> None:
        """Sample all choices; record and remember each at its end.

        Raises:
            HttpError: sampling or recording failed.
            asyncio.CancelledError: the client left; the sampled tokens are recorded with finish reason "cancelled".
        """
        counters, prepared = self._service.counters, self._prepared
        counters.requests += 1
        counters.active += 1
        counters.prompt_tokens += len(prepared.prompt_ids)
        pairs = zip(prepared.choices, prepared.token_requests, strict=True)
        try:
            await _all([self._run_choice(choice, request) for choice, request in pairs])
            counters.completed += 1
        except asyncio.CancelledError:
            counters.cancelled += 1
            raise
        except Exception:  # count it, whatever it is
            counters.failed += 1
            raise
        finally:
            counters.active -= 1
            sampled = sum(len(choice.token_ids) for choice in prepared.choices)
            counters.completion_tokens += sampled
            counters.cached_tokens += max(choice.cached_tokens for choice in prepared.choices)
            attempts = self._service.attempts
            if sampled:
                attempts.spend(prepared.scope, sampled)
            else:
                attempts.give_back(prepared.scope, len(prepared.prompt_ids))

    async def _run_choice(self, choice: Choice, request: TokenRequest) -> None:
        service, prepared = self._service, self._prepared
        recorded = prepared.recorded
        stream = service.sampler.complete(request) if recorded is None else _replay(recorded)
        try:
            async for delta in stream:
                self._emit(choice, choice.take(delta))
                if choice.finish_reason is not None:
                    break
            else:
                choice.finish("cancelled")
        except asyncio.CancelledError:
            await self._record_cancelled(choice)
            raise
        finally:
            await stream.aclose()
        if choice.finish_reason == "cancelled":
            await self._record_cancelled(choice)
            if choice.failure:
                raise BadRequestError(f"the answer cannot take the requested form: {choice.failure}")
            raise UnavailableError("the model stopped before the answer was complete; try again")
        await self._record(choice)
        message = prepared.message(choice)
        if message is not None:
            service.memory.remember(prepared.scope, prepared.prompt, prepared.prompt_ids, choice.token_ids, message)
        self._emit(choice, [], complete=True)

    async def _record_cancelled(self, choice: Choice) -> None:
        if choice.finish_reason is None:
            choice.finish("cancelled")
        if choice.token_ids:
            try:
                await self._record(choice)
            except RecordingError:  # it is logged, and the client has gone
                pass
            except Exception:  # the cancellation must not be replaced
                logger.exception("could not record a cancelled call (scope %s)", self._prepared.scope)

    async def _record(self, choice: Choice) -> None:
        prepared, store = self._prepared, self._service.store
        if prepared.scope is None or store is None:
            return
        answer = RecordedAnswer(
            caller=prepared.caller,
            response_id=prepared.response_id,
            model=prepared.request.model,
            messages=prepared.request.messages,
            tools=prepared.tools,
            settings=sampling_attributes(prepared.token_requests[choice.index].sampling),
            start_time=prepared.start_time,
            index=choice.index,
            message=choice.message(),
            finish_reason=choice.finish_reason or "cancelled",
            prompt_ids=prepared.prompt_ids,
            token_ids=choice.token_ids,
            logprobs=choice.logprobs,
            version=choice.version,
            versions=choice.versions,
            forced=choice.forced,
        )
        await record_answer(store, answer)

    def _emit(self, choice: Choice, parts: list[AnswerPart], complete: bool = False) -> None:
        """Put the new parts of a choice into the stream; `complete` is True once the choice is recorded."""
        if self._task is None:
            return
        request, index = self._request, choice.index
        start, end = self._sent_tokens[index], len(choice.token_ids)
        first = index not in self._started
        with_tokens = end > start and bool(request.logprobs or request.return_token_ids)
        if not (parts or first or complete or with_tokens):
            return
        body = _chunk_choice(choice, parts, first=first, calls_before=self._sent_calls[index])
        if request.logprobs and end > start:
            body["logprobs"] = _logprobs(self._service.renderer, choice, start)
        if request.return_token_ids:
            body["token_ids"] = choice.token_ids[start:end]
        if complete:
            body["finish_reason"] = choice.api_finish_reason
            if choice.stop_reason is not None:
                body["stop_reason"] = choice.stop_reason
        extra: dict[str, Any] = {}
        if first and not self._started and request.return_token_ids:
            extra["prompt_token_ids"] = list(self._prepared.prompt_ids)
        self._started.add(index)
        self._sent_tokens[index] = end
        self._sent_calls[index] += sum(isinstance(part, ToolCall) for part in parts)
        self._put([body], **extra)

    def _put(self, choices: list[dict[str, Any]], **extra: Any) -> None:
        if not self._head:
            self._head = self._shared("chat.completion.chunk", max(choice.version for choice in self._prepared.choices))
            if self._with_usage:
                self._head["usage"] = None
        if self._usage_next and choices:
            extra["usage"] = self._usage()
            self._usage_next = self._usage_always
        events = self._exchange.events({**self._head, "choices": choices, **extra})
        if events:
            self._queue.put_nowait(events)

    def _completion(self) -> dict[str, Any]:
        """Return the whole `chat.completion`."""
        request, choices = self._request, self._prepared.choices
        bodies = []
        for choice in choices:
            with_logprobs = bool(request.logprobs)
            body: dict[str, Any] = {
                "index": choice.index,
                "message": {**choice.message(), "refusal": None},
                "logprobs": _logprobs(self._service.renderer, choice) if with_logprobs else None,
                "finish_reason": choice.api_finish_reason,
            }
            if choice.stop_reason is not None:
                body["stop_reason"] = choice.stop_reason
            if request.return_token_ids:
                body["token_ids"] = list(choice.token_ids)
            bodies.append(body)
        head = self._shared("chat.completion", choices[0].version)
        completion = {**head, "choices": bodies, "usage": self._usage()}
        if request.return_token_ids:
            completion["prompt_token_ids"] = list(self._prepared.prompt_ids)
        return completion

    def _shared(self, kind: str, version: int) -> dict[str, Any]:
        """Return the fields of every body and chunk; the fingerprint is the policy version."""
        return {
            "id": self._prepared.response_id,
            "object": kind,
            "created": int(self._prepared.start_time),
            "model": self._request.model,
            "system_fingerprint": f"policy-{version}",
        }

    def _usage(self) -> dict[str, Any]:
        """Return the token counts; the prompt is counted once for all choices."""
        choices, prompt_tokens = self._prepared.choices, len(self._prepared.prompt_ids)
        completion_tokens = sum(len(choice.token_ids) for choice in choices)
        return {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": prompt_tokens + completion_tokens,
            "prompt_tokens_details": {"cached_tokens": max((choice.cached_tokens for choice in choices), default=0)},
        }


def _logprobs(renderer: ChatRenderer, choice: Choice, start: int = 0) -> dict[str, Any]:
    """Return the log-probabilities from token `start` on, one entry per sampled token including the end token."""

    def entry(token_id: int, value: float) -> dict[str, Any]:
        text, content = renderer.token_text(token_id)
        return {"token": text, "logprob": max(value, -9999.0), "bytes": content}  # OpenAI has -9999.0 for -infinity

    content = []
    for position in range(start, len(choice.token_ids)):
        top = choice.top_logprobs[position] if choice.top_logprobs else ()
        alternatives = [entry(token_id, value) for token_id, value in top]
        content.append({**entry(choice.token_ids[position], choice.logprobs[position]), "top_logprobs": alternatives})
    return {"content": content, "refusal": None}


def _chunk_choice(choice: Choice, parts: Sequence[AnswerPart], *, first: bool, calls_before: int) -> dict[str, Any]:
    """Return the new parts of a streamed choice, which has made `calls_before` tool calls already."""
    delta: dict[str, Any] = {"role": "assistant", "content": ""} if first else {}
    text = "".join(part for part in parts if isinstance(part, str))
    if text:
        delta["content"] = text
    thought = "".join(part.text for part in parts if isinstance(part, Thought))
    if thought:
        delta["reasoning_content"] = thought
    calls = [part for part in parts if isinstance(part, ToolCall)]
    if calls:
        delta["tool_calls"] = [
            {"index": calls_before + offset, **call.as_message()} for offset, call in enumerate(calls)
        ]
    return {"index": choice.index, "delta": delta, "logprobs": None, "finish_reason": None}


async def _replay(record: CompletionRecord) -> AsyncGenerator[TokenDelta, None]:
    """Yield the tokens of a recorded call, each marked as forced: they are never part of a loss."""
    yield TokenDelta(
        token_ids=tuple(int(token) for token in record.output_ids),
        logprobs=tuple(float(logprob) for logprob in record.logprobs),
        forced=(True,) * record.output_ids.size,
        finish_reason=record.finish_reason,
        version=record.version,
    )


async def _all(jobs: list[Awaitable[None]]) -> None:
    """Await all jobs; if one fails or the caller is cancelled, cancel and await the others."""
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
