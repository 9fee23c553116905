"""One prepared chat request and its answer: sampled, read, recorded, remembered, and sent.

A streamed call is sampled in a task of its own, which puts events into a queue. If the client leaves, the task is
cancelled; it records the beginning of the answer before it ends.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ...http import BadRequestError, encode_in_steps, off_loop
from ...samplers import Sampler
from ...store import LightningStore
from ...tokens import CompletionRecord, TokenDelta, TokenRequest
from ..dialects import Caller, ChatRequest, Exchange, StreamOptions
from ..errors import RecordingError, UnavailableError
from ..render.decoding import AnswerPart, Thought
from ..render.messages import plain_messages
from ..render.renderer import ChatRenderer
from ..tool_formats import ToolCall
from .choice import Choice
from .record import Attempt, RecordedAnswer, record_answer, sampling_attributes
from .remember import ConversationMemory, Prompt

logger = logging.getLogger(__name__)

_TOKEN_CHARACTERS: Final = 8
"""Estimated characters of a body per token."""
_LOGPROB_CHARACTERS: Final = 64
"""Estimated characters of a body per log-probability."""


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


class CallContext:
    """What the calls of a `ChatService` share."""

    sampler: Sampler
    renderer: ChatRenderer
    store: LightningStore | None
    counters: Counters
    memory: ConversationMemory
    """The served calls, from whose recorded ids conversations continue."""


@dataclass(eq=False, repr=False)
class ChatCall:
    """One prepared request and its answer."""

    service: CallContext
    exchange: Exchange
    """Translates the answer to the dialect of the request."""
    request: ChatRequest
    caller: Caller
    attempt: Attempt
    prompt: Prompt
    prompt_ids: tuple[int, ...]
    """The prompt, and the start of a forced tool call if no grammar can force it."""
    token_requests: tuple[TokenRequest, ...]
    """One per choice."""
    choices: tuple[Choice, ...]
    response_id: str
    recorded: CompletionRecord | None
    """The recorded call that answers the request; None samples."""
    left_out: Sequence[str]
    """Settings of the chat template that have no effect."""
    start_time: float = field(default_factory=time.time)

    def __post_init__(self) -> None:
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        """Server-sent events; None at the end."""
        self._task: asyncio.Task[None] | None = None
        self._first: bytes | None = b""
        self._head: dict[str, Any] = {}
        """Fields that all chunks share."""
        options = self.request.stream_options or StreamOptions()
        self._with_usage = options.include_usage
        self._usage_always = options.include_usage and options.continuous_usage_stats
        self._usage_next = self.exchange.counts_first or self._usage_always
        """True if the next chunk reports the token counts."""

    @property
    def streams(self) -> bool:
        return bool(self.request.stream)

    async def whole(self) -> bytes:
        await self._run()
        each = _TOKEN_CHARACTERS
        if self.request.logprobs:
            each += _LOGPROB_CHARACTERS * (1 + (self.request.top_logprobs or 0))
        size = each * sum(len(choice.token_ids) for choice in self.choices)
        return await off_loop(size, lambda: encode_in_steps(self.exchange.answer(self._completion())))

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
            self._queue.put_nowait(self.exchange.end())
        finally:
            self._queue.put_nowait(None)

    async def _run(self) -> None:
        """Sample all choices; record and remember each at its end.

        Raises:
            HttpError: sampling or recording failed.
            asyncio.CancelledError: the client left; the sampled tokens are recorded with finish reason "cancelled".
        """
        counters = self.service.counters
        counters.requests += 1
        counters.active += 1
        counters.prompt_tokens += len(self.prompt_ids)
        pairs = zip(self.choices, self.token_requests, strict=True)
        try:
            await _all([self._run_choice(choice, request) for choice, request in pairs])
            counters.completed += 1
        except asyncio.CancelledError:
            counters.cancelled += 1
            raise
        except Exception:  # count every failure, then raise it
            counters.failed += 1
            raise
        finally:
            counters.active -= 1
            sampled = sum(len(choice.token_ids) for choice in self.choices)
            counters.completion_tokens += sampled
            counters.cached_tokens += max(choice.cached_tokens for choice in self.choices)
            if sampled:
                self.attempt.spend(sampled)
            else:
                self.attempt.give_back(len(self.prompt_ids))

    async def _run_choice(self, choice: Choice, request: TokenRequest) -> None:
        stream = self.service.sampler.complete(request) if self.recorded is None else _replay(self.recorded)
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
        message = self._continuable(choice)
        if message is not None:
            memory = self.service.memory
            memory.remember(self.caller.scope, self.prompt, self.prompt_ids, choice.token_ids, message)
        self._emit(choice, [], complete=True)

    def _continuable(self, choice: Choice) -> dict[str, Any] | None:
        """Return a complete answer as the message that continues the conversation; None if it cannot continue."""
        request = self.request
        if request.raw_prompt is not None:
            return None
        (message,) = plain_messages([choice.message()])
        if request.continue_final_message:
            (begun,) = plain_messages(request.messages[-1:])
            return {**begun, **message, "content": begun["content"] + message["content"]}
        return None if request.add_generation_prompt is False else message

    async def _record_cancelled(self, choice: Choice) -> None:
        if choice.finish_reason is None:
            choice.finish("cancelled")
        if choice.token_ids:
            try:
                await self._record(choice)
            except RecordingError:  # it is logged, and the client has gone
                pass
            except Exception:  # a failed record must not replace the CancelledError
                logger.exception("could not record a cancelled call (scope %s)", self.caller.scope)

    async def _record(self, choice: Choice) -> None:
        store = self.service.store
        if self.caller.scope is None or store is None:
            return
        answer = RecordedAnswer(
            caller=self.caller,
            response_id=self.response_id,
            model=self.request.model,
            messages=self.request.messages,
            tools=self.request.offered_tools,
            settings=sampling_attributes(self.token_requests[choice.index].sampling),
            start_time=self.start_time,
            index=choice.index,
            message=choice.message(),
            finish_reason=choice.finish_reason or "cancelled",
            prompt_ids=self.prompt_ids,
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
        request, first = self.request, not choice.begun
        start, end = choice.sent_tokens, len(choice.token_ids)
        with_tokens = end > start and bool(request.logprobs or request.return_token_ids)
        if not (parts or first or complete or with_tokens):
            return
        delta: dict[str, Any] = {"role": "assistant", "content": ""} if first else {}
        if text := "".join(part for part in parts if isinstance(part, str)):
            delta["content"] = text
        if thought := "".join(part.text for part in parts if isinstance(part, Thought)):
            delta["reasoning_content"] = thought
        calls = [part.as_message() for part in parts if isinstance(part, ToolCall)]
        if calls:
            delta["tool_calls"] = [{"index": index, **call} for index, call in enumerate(calls, choice.sent_calls)]
        body = {"delta": delta, **self._fields_of(choice, start, complete)}
        extra = {"prompt_token_ids": list(self.prompt_ids)} if request.return_token_ids and not self._head else {}
        choice.begun, choice.sent_tokens = True, end
        choice.sent_calls += len(calls)
        self._put([body], **extra)

    def _put(self, choices: list[dict[str, Any]], **extra: Any) -> None:
        if not self._head:
            self._head = self._shared("chat.completion.chunk", max(choice.version for choice in self.choices))
            if self._with_usage:
                self._head["usage"] = None
        if self._usage_next and choices:
            extra["usage"] = self._usage()
            self._usage_next = self._usage_always
        events = self.exchange.events({**self._head, "choices": choices, **extra})
        if events:
            self._queue.put_nowait(events)

    def _completion(self) -> dict[str, Any]:
        """Return the whole `chat.completion`."""
        bodies = [
            {"message": {**choice.message(), "refusal": None}, **self._fields_of(choice, 0, complete=True)}
            for choice in self.choices
        ]
        head = self._shared("chat.completion", self.choices[0].version)
        completion = {**head, "choices": bodies, "usage": self._usage()}
        if self.request.return_token_ids:
            completion["prompt_token_ids"] = list(self.prompt_ids)
        return completion

    def _fields_of(self, choice: Choice, start: int, complete: bool) -> dict[str, Any]:
        """Return the fields of a choice beside its message or delta, with its tokens from `start` on."""
        fields: dict[str, Any] = {"index": choice.index, "logprobs": None, "finish_reason": None}
        if self.request.logprobs and (len(choice.token_ids) > start or not self.streams):
            fields["logprobs"] = _logprobs(self.service.renderer, choice, start)
        if self.request.return_token_ids:
            fields["token_ids"] = choice.token_ids[start:]
        if complete:
            fields["finish_reason"] = "tool_calls" if choice.calls else choice.finish_reason
            if choice.stop_reason is not None:
                fields["stop_reason"] = choice.stop_reason
        return fields

    def _shared(self, kind: str, version: int) -> dict[str, Any]:
        """Return the fields of every body and chunk; the fingerprint is the policy version."""
        return {
            "id": self.response_id,
            "object": kind,
            "created": int(self.start_time),
            "model": self.request.model,
            "system_fingerprint": f"policy-{version}",
        }

    def _usage(self) -> dict[str, Any]:
        """Return the token counts; the prompt is counted once for all choices."""
        choices, prompt_tokens = self.choices, len(self.prompt_ids)
        completion_tokens = sum(len(choice.token_ids) for choice in choices)
        return {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": prompt_tokens + completion_tokens,
            "prompt_tokens_details": {"cached_tokens": max((choice.cached_tokens for choice in choices), default=0)},
        }


def _logprobs(renderer: ChatRenderer, choice: Choice, start: int) -> dict[str, Any]:
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
