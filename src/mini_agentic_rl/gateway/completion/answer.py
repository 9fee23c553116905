"""Answers in the shape of OpenAI's chat completions: whole, or as server-sent events with the same ids and logprobs.

A streamed call runs in a task of its own and puts events into a queue. When the client goes away the task is cancelled;
it records what has come of the answer before it ends.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from ...http import EventStream, HttpError, unless_disconnected
from ..dialects import Exchange, StreamOptions
from ..render import AnswerPart, ChatRenderer, Thought
from ..tool_formats import ToolCall
from .prepare import PreparedChat
from .read import Choice
from .sample import ChatService

logger = logging.getLogger(__name__)

_HEADERS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]

_TOKEN = 8
"""Characters of a body, about, for each token of an answer."""
_LOGPROB = 64
"""Characters, about, for each log-probability that it tells."""


def head(kind: str, response_id: str, created: int, model: str, version: int) -> dict[str, Any]:
    """Return the fields that every body and chunk shares; the fingerprint names the policy version that sampled it."""
    return {
        "id": response_id,
        "object": kind,
        "created": created,
        "model": model,
        "system_fingerprint": f"policy-{version}",
    }


def usage(prompt_tokens: int, choices: Sequence[Choice]) -> dict[str, Any]:
    """Return the token counts; with several choices the prompt counts once."""
    completion_tokens = sum(len(choice.token_ids) for choice in choices)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": max((choice.cached_tokens for choice in choices), default=0)},
    }


def logprobs(renderer: ChatRenderer, choice: Choice, start: int = 0) -> dict[str, Any]:
    """Return the log-probabilities from token `start` on, one entry for each sampled id, the end token included."""
    content = []
    for position in range(start, len(choice.token_ids)):
        entry = _token(renderer, choice.token_ids[position], choice.logprobs[position])
        top = choice.top_logprobs[position] if choice.top_logprobs else ()
        entry["top_logprobs"] = [_token(renderer, token_id, value) for token_id, value in top]
        content.append(entry)
    return {"content": content, "refusal": None}


def _token(renderer: ChatRenderer, token_id: int, value: float) -> dict[str, Any]:
    text, content = renderer.token_text(token_id)
    # JSON has no infinity; OpenAI writes -9999.0 for what is out of reach.
    return {"token": text, "logprob": max(value, -9999.0), "bytes": content}


def final_choice(renderer: ChatRenderer, choice: Choice, *, with_logprobs: bool, with_ids: bool) -> dict[str, Any]:
    """Return one choice of a complete answer."""
    result: dict[str, Any] = {
        "index": choice.index,
        "message": {**choice.message(), "refusal": None},
        "logprobs": logprobs(renderer, choice) if with_logprobs else None,
        "finish_reason": choice.api_finish_reason,
    }
    if choice.stop_reason is not None:
        result["stop_reason"] = choice.stop_reason
    if with_ids:
        result["token_ids"] = list(choice.token_ids)
    return result


def answer_size(prepared: PreparedChat) -> int:
    """Return about how many characters the body of a complete answer has."""
    request = prepared.request
    each = _TOKEN + (_LOGPROB * (1 + (request.top_logprobs or 0)) if request.logprobs else 0)
    return each * sum(len(choice.token_ids) for choice in prepared.choices)


def whole_answer(service: ChatService, prepared: PreparedChat) -> dict[str, Any]:
    """Return the body of a complete answer."""
    request, choices = prepared.request, prepared.choices
    body = {
        **head("chat.completion", prepared.response_id, int(prepared.start_time), request.model, choices[0].version),
        "choices": [
            final_choice(
                service.renderer,
                choice,
                with_logprobs=bool(request.logprobs),
                with_ids=bool(request.return_token_ids),
            )
            for choice in choices
        ],
        "usage": usage(len(prepared.prompt_ids), choices),
    }
    if request.return_token_ids:
        body["prompt_token_ids"] = list(prepared.prompt_ids)
    return body


def chunk_choice(choice: Choice, parts: Sequence[AnswerPart], *, first: bool, calls_before: int) -> dict[str, Any]:
    """Return the new parts of a streamed choice; `calls_before` is how many tool calls it has had already."""
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


class ChatStream(EventStream):
    """The response to one streamed request. `begin` first, then it is sent as any response.

    Args:
        service: answers the request.
        prepared: the request.
        exchange: the same in its dialect.
        receive: tells when the client goes away.
        headers: headers of the response beside the usual.
        counts_first: whether the first chunk tells the token counts.
    """

    def __init__(
        self,
        service: ChatService,
        prepared: PreparedChat,
        exchange: Exchange,
        receive: Receive,
        headers: Mapping[str, str] | None = None,
        counts_first: bool = False,
    ) -> None:
        super().__init__()
        self._further = [(name.lower().encode(), value.encode()) for name, value in (headers or {}).items()]
        self._service = service
        self._prepared = prepared
        self._exchange = exchange
        self._queue: asyncio.Queue[bytes | HttpError | None] = asyncio.Queue()
        self._first = b""
        self._head: dict[str, Any] = {}
        """Fields that all chunks share."""
        self._started: set[int] = set()
        self._sent = [0] * len(prepared.choices)
        self._calls = [0] * len(prepared.choices)
        options = prepared.request.stream_options or StreamOptions()
        self._with_usage = options.include_usage
        self._counts_always = options.include_usage and options.continuous_usage_stats
        self._counts_next = counts_first or self._counts_always
        """True if the next chunk tells the token counts so far."""
        self._task = asyncio.create_task(self._run(receive))

    async def begin(self) -> None:
        """Wait for the first event, so that an early failure is still answered with its HTTP status.

        Raises:
            HttpError: the call failed before anything was sampled.
        """
        try:
            event = await self._queue.get()
        except asyncio.CancelledError:
            self._task.cancel()
            raise
        if isinstance(event, HttpError):
            raise event
        if event is None:
            self._queue.put_nowait(None)
        else:
            self._first = event

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": 200, "headers": [*_HEADERS, *self._further]})
            events = [self._first]
            while True:
                while not self._queue.empty() or not any(events):
                    event = await self._queue.get()
                    if event is None:
                        await send({"type": "http.response.body", "body": b"".join(events), "more_body": False})
                        return
                    if isinstance(event, HttpError):
                        self.failed = True
                        event = self._exchange.failed(event)
                    events.append(event)
                await send({"type": "http.response.body", "body": b"".join(events), "more_body": True})
                events = []
        finally:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self, receive: Receive) -> None:
        try:
            await unless_disconnected(self._service.run(self._prepared, self._emit), receive)
            if self._with_usage:
                self._put([], usage=usage(len(self._prepared.prompt_ids), self._prepared.choices))
            self._queue.put_nowait(self._exchange.end())
        except ClientDisconnect:  # nobody is left to be told
            pass
        except HttpError as error:
            self._queue.put_nowait(error)
        except Exception:  # whatever fails below must end this answer, not the server
            logger.exception("a streamed call failed")
            self._queue.put_nowait(HttpError("the server failed to answer; its log says why"))
        finally:
            self._queue.put_nowait(None)

    def _emit(self, choice: Choice, parts: list[AnswerPart], complete: bool) -> None:
        request = self._prepared.request
        index = choice.index
        start, end = self._sent[index], len(choice.token_ids)
        first = index not in self._started
        with_tokens = end > start and bool(request.logprobs or request.return_token_ids)
        if not (parts or first or complete or with_tokens):
            return
        body = chunk_choice(choice, parts, first=first, calls_before=self._calls[index])
        if request.logprobs and end > start:
            body["logprobs"] = logprobs(self._service.renderer, choice, start)
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
        self._sent[index] = end
        self._calls[index] += sum(isinstance(part, ToolCall) for part in parts)
        self._put([body], **extra)

    def _put(self, choices: list[dict[str, Any]], **extra: Any) -> None:
        if not self._head:
            prepared = self._prepared
            version = max(choice.version for choice in prepared.choices)
            self._head = head(
                "chat.completion.chunk", prepared.response_id, int(prepared.start_time), prepared.request.model, version
            )
            if self._with_usage:
                self._head["usage"] = None
        if self._counts_next and choices:
            extra["usage"] = usage(len(self._prepared.prompt_ids), self._prepared.choices)
            self._counts_next = self._counts_always
        events = self._exchange.events({**self._head, "choices": choices, **extra})
        if events:
            self._queue.put_nowait(events)
