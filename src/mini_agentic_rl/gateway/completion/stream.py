"""Answers as server-sent events, with the same ids and log-probabilities as an answer in one piece.

The call runs in a task of its own and puts events into a queue. When the client goes away the task is cancelled; it
records what has come of the answer before it ends.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from starlette.types import Receive, Scope, Send

from ...http import EventStream, unless_disconnected
from ..dialects import Exchange
from ..errors import GatewayError
from ..render.answer_reader import Piece
from ..tool_formats import ToolCall
from . import answers
from .prepare import ChatTurn
from .read import Choice
from .sample import ChatService

logger = logging.getLogger(__name__)

_HEADERS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]


class ChatStream(EventStream):
    """The response to one streamed turn. `begin` first, then it is sent as any response."""

    def __init__(self, service: ChatService, turn: ChatTurn, exchange: Exchange, receive: Receive) -> None:
        super().__init__()
        self._service = service
        self._turn = turn
        self._exchange = exchange
        self._queue: asyncio.Queue[bytes | GatewayError | None] = asyncio.Queue()
        self._first = b""
        self._head: dict[str, Any] = {}
        """What all chunks say alike."""
        self._started: set[int] = set()
        self._sent = [0] * len(turn.choices)
        self._calls = [0] * len(turn.choices)
        self._with_usage = turn.request.stream_options is not None and turn.request.stream_options.include_usage
        self._task = asyncio.create_task(self._run(receive))

    async def begin(self) -> None:
        """Wait for the first event, so that an early failure is still answered with its HTTP status.

        Raises:
            GatewayError: the call failed before anything was sampled.
        """
        try:
            event = await self._queue.get()
        except asyncio.CancelledError:
            self._task.cancel()
            raise
        if isinstance(event, GatewayError):
            raise event
        if event is None:
            self._queue.put_nowait(None)
        else:
            self._first = event

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
            body = self._first
            while True:
                while not self._queue.empty() or not body:
                    event = await self._queue.get()
                    if event is None:
                        await send({"type": "http.response.body", "body": body, "more_body": False})
                        return
                    if isinstance(event, GatewayError):
                        self.failed = True
                        event = self._exchange.failed(event)
                    body += event
                await send({"type": "http.response.body", "body": body, "more_body": True})
                body = b""
        finally:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self, receive: Receive) -> None:
        try:
            if await unless_disconnected(self._service.run(self._turn, self._emit), receive):
                if self._with_usage:
                    self._put([], usage=answers.usage(len(self._turn.prompt_ids), self._turn.choices))
                self._queue.put_nowait(self._exchange.end())
        except GatewayError as error:
            self._queue.put_nowait(error)
        except Exception:  # whatever fails below must end this answer, not the server
            logger.exception("a streamed call failed")
            self._queue.put_nowait(GatewayError("the server failed to answer; its log says why"))
        finally:
            self._queue.put_nowait(None)

    def _emit(self, choice: Choice, pieces: list[Piece], complete: bool) -> None:
        request = self._turn.request
        index = choice.index
        start, end = self._sent[index], len(choice.token_ids)
        first = index not in self._started
        with_tokens = end > start and bool(request.logprobs or request.return_token_ids)
        if not (pieces or first or complete or with_tokens):
            return
        part = answers.chunk_choice(choice, pieces, first=first, calls_before=self._calls[index])
        if request.logprobs and end > start:
            part["logprobs"] = answers.logprobs(self._service.renderer.tokenizer, choice, start)
        if request.return_token_ids:
            part["token_ids"] = choice.token_ids[start:end]
        if complete:
            part["finish_reason"] = choice.api_finish_reason
            if choice.stop_string is not None:
                part["stop_reason"] = choice.stop_string
        extra: dict[str, Any] = {}
        if first and not self._started and request.return_token_ids:
            extra["prompt_token_ids"] = list(self._turn.prompt_ids)
        self._started.add(index)
        self._sent[index] = end
        self._calls[index] += sum(isinstance(piece, ToolCall) for piece in pieces)
        self._put([part], **extra)

    def _put(self, choices: list[dict[str, Any]], **extra: Any) -> None:
        if not self._head:
            turn = self._turn
            version = max(choice.version for choice in turn.choices)
            self._head = answers.head(
                "chat.completion.chunk", turn.response_id, int(turn.start_time), turn.request.model, version
            )
            if self._with_usage:
                self._head["usage"] = None
        events = self._exchange.events({**self._head, "choices": choices, **extra})
        if events:
            self._queue.put_nowait(events)
