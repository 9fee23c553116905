"""A response as it grows out of a chat completion, whole or chunk by chunk: its object and its events."""

from __future__ import annotations

import uuid
from typing import Final

from ...errors import GatewayError, UnavailableError
from ..base import Json
from ..completion import CallPart, Completion
from .output import CallItem, MessageItem, OutputItem, ReasoningItem
from .request import ResponsesRequest

_INCOMPLETE: Final = {"length": "max_output_tokens", "content_filter": "content_filter"}


class ResponseAnswer:
    """The answer to one request. `take` what comes, then `finish`, or `fail`."""

    def __init__(self, request: ResponsesRequest) -> None:
        self._request = request
        self._completion = Completion()
        self._items: list[OutputItem] = []
        self._open: OutputItem | None = None
        self._calls: dict[int, CallItem] = {}
        self._logprobs: list[Json] = []
        self._events = 0
        self._id = ""
        self._status = "in_progress"
        self._error: Json | None = None

    def take(self, body: Json) -> list[Json]:
        """Read a completion or a chunk of one; returns the events that tell of it.

        Raises:
            UnavailableError: an upstream went on with a tool call after it had begun another item.
        """
        part = self._completion.take(body)
        events = self._begin()
        if part.reasoning:
            events += self._grow_text(ReasoningItem, "rs", part.reasoning)
        if self._request.wants_logprobs:
            self._logprobs += part.logprobs
        if part.text:
            events += self._grow_text(MessageItem, "msg", part.text)
        for call in part.calls:
            events += self._grow_call(call)
        return self._numbered(events)

    def finish(self) -> list[Json]:
        """End the answer; returns its last events."""
        events = self._begin()
        if not self._calls and not any(isinstance(item, MessageItem) for item in self._items):
            events += self._add(MessageItem(self._item_id("msg"), len(self._items)))
        incomplete = self._completion.finish_reason in _INCOMPLETE
        events += self._close("incomplete" if incomplete else "completed")
        self._status = "incomplete" if incomplete else "completed"
        return self._numbered([*events, {"type": f"response.{self._status}", "response": self.body()}])

    def fail(self, error: GatewayError) -> list[Json]:
        """End an answer that broke off; returns its last events."""
        events = self._begin()
        self._status = "failed"
        self._error = {"code": error.code or "server_error", "message": error.message}
        return self._numbered([*events, {"type": "response.failed", "response": self.body()}])

    @property
    def id(self) -> str:
        """The response's id; it ends as that of the recorded chat completion does."""
        if not self._id:
            self._id = "resp_" + (self._completion.id.removeprefix("chatcmpl-") or uuid.uuid4().hex)
        return self._id

    def body(self) -> Json:
        """The response object."""
        request, completion = self._request, self._completion
        reason = _INCOMPLETE.get(completion.finish_reason or "")
        ended = self._status in ("completed", "incomplete")
        body: Json = {
            "id": self.id,
            "object": "response",
            "created_at": completion.created,
            "status": self._status,
            "background": False,
            "error": self._error,
            "incomplete_details": {"reason": reason} if ended and reason else None,
            "instructions": request.instructions,
            "max_output_tokens": request.max_output_tokens,
            "metadata": request.metadata or {},
            "model": completion.model or request.model,
            "output": [] if self._status == "in_progress" else [item.body() for item in self._items],
            "parallel_tool_calls": request.parallel_tool_calls is not False,
            "previous_response_id": request.previous_response_id,
            "reasoning": request.reasoning.model_dump() if request.reasoning else {"effort": None, "summary": None},
            "store": request.store is not False,
            "temperature": 1.0 if request.temperature is None else request.temperature,
            "text": {"format": (request.text and request.text.format) or {"type": "text"}},
            "tool_choice": request.tool_choice or "auto",
            "tools": request.tools or [],
            "top_logprobs": request.top_logprobs or 0,
            "top_p": 1.0 if request.top_p is None else request.top_p,
            "truncation": "disabled",
            "usage": self._usage() if ended else None,
            "user": request.user,
        }
        if ended and request.return_token_ids:
            body |= {"prompt_token_ids": completion.prompt_token_ids, "token_ids": completion.token_ids}
        return body

    def message(self) -> Json:
        """The answer as the chat message that was recorded."""
        text = "".join(item.text for item in self._items if isinstance(item, MessageItem))
        reasoning = "".join(item.text for item in self._items if isinstance(item, ReasoningItem))
        message: Json = {"role": "assistant", "content": text or (None if self._calls else "")}
        if reasoning:
            message["reasoning_content"] = reasoning
        if self._calls:
            message["tool_calls"] = [
                {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.text}}
                for call in self._calls.values()
            ]
        return message

    def _usage(self) -> Json:
        told = self._completion
        return {
            "input_tokens": told.prompt_tokens,
            "input_tokens_details": {"cached_tokens": told.cached_tokens, "cache_write_tokens": 0},
            "output_tokens": told.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": told.reasoning_tokens},
            "total_tokens": told.prompt_tokens + told.completion_tokens,
        }

    def _begin(self) -> list[Json]:
        """The first two events, once."""
        if self._events:
            return []
        return [{"type": f"response.{kind}", "response": self.body()} for kind in ("created", "in_progress")]

    def _grow_text(self, kind: type[MessageItem] | type[ReasoningItem], prefix: str, text: str) -> list[Json]:
        item = self._open
        events = []
        if not isinstance(item, kind):
            item = kind(self._item_id(prefix), len(self._items))
            events = self._add(item)
        if isinstance(item, MessageItem):
            self._hand_over_logprobs(item)
        return events + item.grow(text)

    def _hand_over_logprobs(self, item: MessageItem) -> None:
        """Give a message what has been told of tokens since its last text."""
        item.add_logprobs(self._logprobs)
        self._logprobs = []

    def _grow_call(self, part: CallPart) -> list[Json]:
        call = self._calls.get(part.index)
        if call is None:
            call_id = part.id or f"call_{uuid.uuid4().hex[:24]}"
            call = self._calls[part.index] = CallItem(self._item_id("fc"), len(self._items), call_id, part.name)
            return self._add(call) + call.grow(part.arguments)
        if call is not self._open:
            raise UnavailableError("the model's server mixed the parts of several tool calls")
        return call.grow(part.arguments)

    def _add(self, item: OutputItem) -> list[Json]:
        events = self._close("completed")
        self._items.append(item)
        self._open = item
        return events + item.begin()

    def _close(self, status: str) -> list[Json]:
        item, self._open = self._open, None
        if isinstance(item, MessageItem):
            self._hand_over_logprobs(item)
        return [] if item is None else item.end(status)

    def _item_id(self, prefix: str) -> str:
        return f"{prefix}_{self.id.removeprefix('resp_')}_{len(self._items)}"

    def _numbered(self, events: list[Json]) -> list[Json]:
        for event in events:
            event["sequence_number"] = self._events
            self._events += 1
        return events
