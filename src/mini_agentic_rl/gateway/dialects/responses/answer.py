"""A response as it grows out of a chat completion, whole or chunk by chunk: its items, its object and its events.

An item begins, grows by stretches of text, and ends. The events are OpenAI's.
"""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Final

from ....http import HttpError
from ...errors import UnavailableError
from ...growing_text import GrowingText
from ..base import MOST_ITEMS, Json, assistant_message
from ..chat_reader import CallDelta, ChatReader
from ..custom_tools import input_of
from .request import ResponsesRequest


class OutputItem(ABC):
    """One item of the output."""

    kind: ClassVar[str]
    prefix: ClassVar[str]
    """Beginning of its id."""

    def __init__(self, item_id: str, index: int) -> None:
        self._said = GrowingText()
        self._place: Json = {"item_id": item_id, "output_index": index}
        self._status = "in_progress"

    @property
    def text(self) -> str:
        """The text so far; a call's arguments."""
        return str(self._said)

    def begin(self) -> list[Json]:
        """Return the events that open it."""
        return [self._whole("added", self.body())]

    @abstractmethod
    def grow(self, text: str) -> list[Json]:
        """Add text; return the events that tell of it."""

    def end(self, status: str) -> list[Json]:
        """Return the events that close it, with the status that it ends in."""
        self._status = status
        return [*self._last(), self._whole("done", self.body())]

    def body(self) -> Json:
        """Return the item as it stands."""
        return {"id": self._place["item_id"], "type": self.kind, "status": self._status, **self._fields()}

    @abstractmethod
    def _last(self) -> list[Json]:
        """Return the events that tell its text once more, whole."""

    @abstractmethod
    def _fields(self) -> Json:
        """Return what items of this kind have beside id, type and status."""

    def _told(self, event: str, **fields: object) -> Json:
        return {"type": f"response.{event}", **self._place, **fields}

    def _whole(self, event: str, item: Json) -> Json:
        return {"type": f"response.output_item.{event}", "output_index": self._place["output_index"], "item": item}


class TextItem(OutputItem):
    """Item whose content is one part of text."""

    part_kind: ClassVar[str]

    def begin(self) -> list[Json]:
        added = self._whole("added", {**self.body(), "content": []})
        return [added, self._told("content_part.added", content_index=0, part=self._part())]

    def grow(self, text: str) -> list[Json]:
        self._said.add(text)
        return [self._told(f"{self.part_kind}.delta", content_index=0, delta=text)]

    def _last(self) -> list[Json]:
        return [
            self._told(f"{self.part_kind}.done", content_index=0, text=self.text),
            self._told("content_part.done", content_index=0, part=self._part()),
        ]

    def _part(self) -> Json:
        return {"type": self.part_kind, "text": self.text}


class MessageItem(TextItem):
    """Text of the answer: one message with one part."""

    kind = "message"
    prefix = "msg"
    part_kind = "output_text"

    def __init__(self, item_id: str, index: int) -> None:
        super().__init__(item_id, index)
        self._logprobs: list[Json] = []
        self._told_logprobs = 0

    def add_logprobs(self, entries: Sequence[Json]) -> None:
        """Add entries of chat's `logprobs.content`; those that are new go out with the next text."""
        self._logprobs += [_logprob(entry) for entry in entries]

    def grow(self, text: str) -> list[Json]:
        new, self._told_logprobs = self._logprobs[self._told_logprobs :], len(self._logprobs)
        return [{**event, "logprobs": new} for event in super().grow(text)]

    def _last(self) -> list[Json]:
        text, part = super()._last()
        return [{**text, "logprobs": self._logprobs}, part]

    def _fields(self) -> Json:
        return {"role": "assistant", "content": [self._part()]}

    def _part(self) -> Json:
        return {**super()._part(), "annotations": [], "logprobs": list(self._logprobs)}


class ReasoningItem(TextItem):
    """The model's thinking, told in full."""

    kind = "reasoning"
    prefix = "rs"
    part_kind = "reasoning_text"

    def _fields(self) -> Json:
        return {"summary": [], "content": [self._part()]}


class CallItem(OutputItem):
    """A function call."""

    kind = "function_call"
    prefix = "fc"

    def __init__(self, item_id: str, index: int, call_id: str, name: str) -> None:
        super().__init__(item_id, index)
        self.call_id = call_id
        self.name = name

    def grow(self, text: str) -> list[Json]:
        self._said.add(text)
        return [self._told("function_call_arguments.delta", delta=text)] if text else []

    def _last(self) -> list[Json]:
        return [self._told("function_call_arguments.done", name=self.name, arguments=self.text)]

    def _fields(self) -> Json:
        return {"call_id": self.call_id, "name": self.name, "arguments": self.text}


class CustomCallItem(CallItem):
    """A call of a custom tool, whose input is told when it is whole: it comes as JSON."""

    kind = "custom_tool_call"
    prefix = "ctc"

    def grow(self, text: str) -> list[Json]:
        self._said.add(text)
        return []

    def _last(self) -> list[Json]:
        text = input_of(self.text)
        return [
            self._told("custom_tool_call_input.delta", delta=text),
            self._told("custom_tool_call_input.done", input=text),
        ]

    def _fields(self) -> Json:
        said = "" if self._status == "in_progress" else input_of(self.text)
        return {"call_id": self.call_id, "name": self.name, "input": said}


def _logprob(entry: Json) -> Json:
    """Return one entry of chat's log-probabilities; `bytes` may not be null here."""
    told = entry.get("top_logprobs")
    items = [item for item in told if isinstance(item, dict)] if isinstance(told, list) else []
    top = [{**item, "bytes": item.get("bytes") or []} for item in items]
    return {**entry, "bytes": entry.get("bytes") or [], "top_logprobs": top}


_INCOMPLETE: Final = {"length": "max_output_tokens", "content_filter": "content_filter"}


class ResponseAnswer:
    """The answer to one request. `take` what comes, then `finish`, or `fail`."""

    def __init__(self, request: ResponsesRequest) -> None:
        self._request = request
        self._completion = ChatReader()
        self._items: list[OutputItem] = []
        self._open: OutputItem | None = None
        self._calls: dict[int, CallItem] = {}
        self._logprobs: list[Json] = []
        self._events = 0
        self._id = ""
        self._status = "in_progress"
        self._error: Json | None = None

    def take(self, body: Json) -> list[Json]:
        """Read a completion or a chunk of one; return the events that tell of it.

        Raises:
            UnavailableError: an upstream went on with a tool call after it had begun another item.
        """
        part = self._completion.take(body)
        events = self._begin()
        if part.reasoning:
            events += self._grow_text(ReasoningItem, part.reasoning)
        if self._request.wants_logprobs:
            self._logprobs += part.logprobs
        if part.text:
            events += self._grow_text(MessageItem, part.text)
        for call in part.calls:
            events += self._grow_call(call)
        return self._numbered(events)

    def finish(self) -> list[Json]:
        """End the answer; return its last events."""
        events = self._begin()
        if not self._calls and not any(isinstance(item, MessageItem) for item in self._items):
            events += self._add(MessageItem(*self._place(MessageItem)))
        incomplete = self._completion.finish_reason in _INCOMPLETE
        events += self._close("incomplete" if incomplete else "completed")
        self._status = "incomplete" if incomplete else "completed"
        return self._numbered([*events, {"type": f"response.{self._status}", "response": self.body()}])

    def fail(self, error: HttpError) -> list[Json]:
        """End an answer that broke off; return its last events."""
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
        """Return the response object."""
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
        """Return the answer as the chat message that was recorded."""
        text = "".join(item.text for item in self._items if isinstance(item, MessageItem))
        reasoning = "".join(item.text for item in self._items if isinstance(item, ReasoningItem))
        calls = [
            {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.text}}
            for call in self._calls.values()
        ]
        return assistant_message(text, reasoning or None, calls)

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
        """Return the first two events, once."""
        if self._events:
            return []
        return [{"type": f"response.{kind}", "response": self.body()} for kind in ("created", "in_progress")]

    def _grow_text(self, kind: type[TextItem], text: str) -> list[Json]:
        item = self._open
        events = []
        if not isinstance(item, kind):
            item = kind(*self._place(kind))
            events = self._add(item)
        if isinstance(item, MessageItem):
            self._hand_over_logprobs(item)
        return events + item.grow(text)

    def _hand_over_logprobs(self, item: MessageItem) -> None:
        """Give a message what has been told of tokens since its last text."""
        item.add_logprobs(self._logprobs)
        self._logprobs = []

    def _grow_call(self, part: CallDelta) -> list[Json]:
        call = self._calls.get(part.index)
        if call is None:
            call_id = part.id or f"call_{uuid.uuid4().hex[:24]}"
            kind = CustomCallItem if part.name in self._request.custom_tools else CallItem
            call = self._calls[part.index] = kind(*self._place(kind), call_id, part.name)
            return self._add(call) + call.grow(part.arguments)
        if call is not self._open:
            raise UnavailableError("the model's server mixed the parts of several tool calls")
        return call.grow(part.arguments)

    def _add(self, item: OutputItem) -> list[Json]:
        if len(self._items) == MOST_ITEMS:
            raise UnavailableError(f"the model's server went back and forth between more than {MOST_ITEMS} parts")
        events = self._close("completed")
        self._items.append(item)
        self._open = item
        return events + item.begin()

    def _close(self, status: str) -> list[Json]:
        item, self._open = self._open, None
        if isinstance(item, MessageItem):
            self._hand_over_logprobs(item)
        return [] if item is None else item.end(status)

    def _place(self, kind: type[OutputItem]) -> tuple[str, int]:
        """Return the id and the place in the output of the next item."""
        index = len(self._items)
        return f"{kind.prefix}_{self.id.removeprefix('resp_')}_{index}", index

    def _numbered(self, events: list[Json]) -> list[Json]:
        for event in events:
            event["sequence_number"] = self._events
            self._events += 1
        return events
