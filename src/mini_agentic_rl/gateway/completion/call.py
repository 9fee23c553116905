"""One prepared chat request and its answer: sampled, read, recorded, remembered, and sent.

A streamed call is sampled in a task of its own, which puts events into a queue. If the client leaves, the task is
cancelled; it records the beginning of the answer before it ends.

A `Choice` is one answer as it grows. Its ids and log-probabilities are always cut and extended together. A stop string
in the text ends both after the token that completes it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Collection, Sequence
from dataclasses import InitVar, dataclass, field
from typing import Any, Final

from ...http import BadRequestError, encode_in_steps, off_loop
from ...samplers import Sampler
from ...store import LightningStore
from ...tokens import CompletionRecord, FinishReason, TokenDelta, TokenRequest
from ..dialects import Caller, ChatRequest, Exchange, StreamOptions
from ..errors import RecordingError, UnavailableError
from ..render.decoding import AnswerPart, AnswerReader, Decoder, Detokenizer, Thought, partial_end
from ..render.messages import assistant_message, plain_messages
from ..render.renderer import ChatRenderer
from ..tool_formats import ToolCall
from .record import Attempt, RecordedAnswer, record_answer, sampling_attributes
from .remember import ConversationMemory, Prompt

logger = logging.getLogger(__name__)

_TOKEN_CHARACTERS: Final = 8
"""Estimated characters of a body per token."""
_LOGPROB_CHARACTERS: Final = 64
"""Estimated characters of a body per log-probability."""


@dataclass(eq=False, repr=False)
class Choice:
    """Takes deltas of tokens, returns parts of the answer."""

    index: int
    """Index of the answer in its response."""
    decoder: Decoder
    end_ids: Collection[int] = ()
    """Ids that end an answer; they make no text."""
    stops: Sequence[str] = ()
    """Stop strings."""
    reader: AnswerReader | None = None
    """Separates thought, content and tool calls; None takes all text as content."""
    prefix: InitVar[str] = ""
    """Beginning of the answer that is part of the prompt."""
    stop_ids: Collection[int] = ()
    """Further ids that end the answer, set by the client; they make no text."""
    must_call: bool = False
    """The answer consists of calls only; a call that is cut off at the length bound is not text."""
    streamed: bool = False
    """`take` returns parts as they arrive; otherwise the text is decoded once, at the end."""
    one_call: bool = False
    """The answer ends with its first tool call."""

    def __post_init__(self, prefix: str) -> None:
        self.token_ids: list[int] = []
        self.logprobs: list[float] = []
        self.top_logprobs: list[tuple[tuple[int, float], ...]] = []
        self.forced: list[int] = []
        self.failure = ""
        self.finish_reason: FinishReason | None = None
        self.stop_string: str | None = None
        """The stop string that ended the answer, if one did."""
        self.version = 0
        self.versions: list[int] = []
        """Policy version of each token."""
        self.cached_tokens = 0
        self.calls: list[ToolCall] = []
        self.begun = False
        """True once a chunk with this choice was sent."""
        self.sent_tokens = 0
        self.sent_calls = 0
        self._content: list[str] = []
        self._thought: list[str] = []
        self._silent_ids = frozenset((*self.end_ids, *self.stop_ids))
        self._cuts = bool(self.stops) or self.one_call
        """True if the text may end the answer: tokens are decoded one by one then."""
        self._stepwise = self.streamed or self._cuts
        self._detokenizer = Detokenizer(self.decoder)
        self._text = ""
        self._emitted = 0
        """Characters of the text that were passed to the reader."""
        self._early = self._read(prefix)

    @property
    def content(self) -> str:
        """The text of the answer without thought and tool calls."""
        return "".join(self._content)

    @property
    def thought(self) -> str | None:
        """The thought before the content; None without one."""
        return "".join(self._thought) if self.reader is not None and self.reader.thought_found else None

    @property
    def stop_reason(self) -> str | int | None:
        """The stop string or the client's stop id that ended the answer."""
        last = self.token_ids[-1] if self.token_ids and self.finish_reason == "stop" else None
        by_client = last in self.stop_ids and last not in self.end_ids
        return last if self.stop_string is None and by_client else self.stop_string

    @property
    def api_finish_reason(self) -> str:
        """The finish reason as OpenAI names it."""
        return "tool_calls" if self.calls else self.finish_reason or "stop"

    def message(self) -> dict[str, Any]:
        """Return the answer as an OpenAI message."""
        return assistant_message(self.content, self.thought, [call.as_message() for call in self.calls])

    def take(self, delta: TokenDelta) -> list[AnswerPart]:
        """Add a delta; return the parts that are certain by now. A complete answer has a `finish_reason`."""
        if not self.token_ids:
            self.version = delta.version
        self.cached_tokens = self.cached_tokens or delta.cached_tokens
        parts, self._early = self._early, []
        count = len(delta.token_ids)
        step = 1 if self._cuts else max(1, count)
        for start in range(0, count, step):
            new = self._append(delta, start, start + step)
            if self._stepwise and new:
                parts += self._grow(self._detokenizer.add(*new))
                if self.finish_reason is not None:
                    return parts
        if delta.finish_reason is not None:
            self.failure = delta.failure
            parts += self.finish(delta.finish_reason)
        return parts

    def _append(self, delta: TokenDelta, start: int, end: int) -> list[int]:
        """Append the tokens of a delta from `start` to `end`; return those that make text."""
        new = delta.token_ids[start:end]
        if delta.forced:
            first = len(self.token_ids) - start
            self.forced += [first + at for at in range(start, start + len(new)) if delta.forced[at]]
        self.token_ids += new
        self.logprobs += delta.logprobs[start:end]
        self.versions += [delta.version] * len(new)
        self.top_logprobs += delta.top_logprobs[start:end]
        return [token_id for token_id in new if token_id not in self._silent_ids]

    def finish(self, reason: FinishReason) -> list[AnswerPart]:
        """End the answer; return the rest of its parts."""
        parts, self._early = self._early, []
        if self._stepwise:
            parts += self._grow(self._detokenizer.finish())
            if self.finish_reason is not None:
                return parts
        else:
            self._text = self.decoder([token_id for token_id in self.token_ids if token_id not in self._silent_ids])
        return parts + self._close(reason, len(self._text))

    def _grow(self, text: str) -> list[AnswerPart]:
        if not text:
            return []
        longest = max((len(stop) for stop in self.stops), default=0)
        searched = max(0, len(self._text) - longest + 1)
        self._text += text
        stops = [(at, stop) for stop in self.stops if (at := self._text.find(stop, searched)) >= 0]
        if stops:
            end, self.stop_string = min(stops)
            return self._close("stop", end)
        held = max((partial_end(self._text, stop) for stop in self.stops), default=0)
        parts = self._read_to(len(self._text) - held)
        if self.one_call and self.calls:
            self.finish_reason = "stop"
        return parts

    def _close(self, reason: FinishReason, end: int) -> list[AnswerPart]:
        self.finish_reason = reason
        parts = self._read_to(end)
        if self.reader is None:
            return parts
        rest = self.reader.finish()
        if self.must_call and reason == "length":
            rest = [part for part in rest if not isinstance(part, str)]
        return parts + self._keep(rest)

    def _read_to(self, end: int) -> list[AnswerPart]:
        text = self._text[self._emitted : end]
        self._emitted = max(self._emitted, end)
        return self._read(text)

    def _read(self, text: str) -> list[AnswerPart]:
        if not text:
            return []
        return self._keep(self.reader.feed(text) if self.reader else [text])

    def _keep(self, parts: list[AnswerPart]) -> list[AnswerPart]:
        if self.one_call:  # nothing may follow the first call
            first = next((at for at, part in enumerate(parts) if isinstance(part, ToolCall)), len(parts))
            parts = [] if self.calls else parts[: first + 1]
        for part in parts:
            if isinstance(part, ToolCall):
                self.calls.append(part)
            elif isinstance(part, Thought):
                self._thought.append(part.text)
            else:
                self._content.append(part)
        return parts


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
        body: dict[str, Any] = {"index": choice.index, "delta": delta, "logprobs": None, "finish_reason": None}
        if request.logprobs and end > start:
            body["logprobs"] = _logprobs(self.service.renderer, choice, start)
        if request.return_token_ids:
            body["token_ids"] = choice.token_ids[start:end]
        if complete:
            body["finish_reason"] = choice.api_finish_reason
            if choice.stop_reason is not None:
                body["stop_reason"] = choice.stop_reason
        extra: dict[str, Any] = {}
        if not self._head and request.return_token_ids:
            extra["prompt_token_ids"] = list(self.prompt_ids)
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
        request, choices = self.request, self.choices
        bodies = []
        for choice in choices:
            with_logprobs = bool(request.logprobs)
            body: dict[str, Any] = {
                "index": choice.index,
                "message": {**choice.message(), "refusal": None},
                "logprobs": _logprobs(self.service.renderer, choice) if with_logprobs else None,
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
            completion["prompt_token_ids"] = list(self.prompt_ids)
        return completion

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
