"""The output items of a response as they grow, each with the events that tell of it.

An item begins, grows by pieces of text, and ends. The events are OpenAI's, without their sequence numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ..base import Json


class OutputItem(Protocol):
    """One item of the output."""

    text: str
    """What it says so far; a call's arguments."""

    def begin(self) -> list[Json]:
        """The events that open it."""
        ...

    def grow(self, text: str) -> list[Json]:
        """Add a piece; returns the events that tell of it."""
        ...

    def end(self, status: str) -> list[Json]:
        """The events that close it, with the status that it ends in."""
        ...

    def body(self) -> Json:
        """The item as it stands."""
        ...


class _Item:
    """What the kinds have in common: an id, a place in the output, text, a status."""

    def __init__(self, item_id: str, index: int) -> None:
        self.text = ""
        self._place: Json = {"item_id": item_id, "output_index": index}
        self._id = item_id
        self._status = "in_progress"

    def _told(self, kind: str, **fields: object) -> Json:
        return {"type": f"response.{kind}", **self._place, **fields}

    def _whole(self, kind: str, item: Json) -> Json:
        return {"type": f"response.output_item.{kind}", "output_index": self._place["output_index"], "item": item}


class MessageItem(_Item):
    """Text of the answer: one message with one part."""

    def __init__(self, item_id: str, index: int) -> None:
        super().__init__(item_id, index)
        self._logprobs: list[Json] = []
        self._told_logprobs = 0

    def begin(self) -> list[Json]:
        added = self._whole("added", {**self.body(), "content": []})
        return [added, self._told("content_part.added", content_index=0, part=self._part())]

    def add_logprobs(self, entries: Sequence[Json]) -> None:
        """Add entries of chat's `logprobs.content`; those that are new go out with the next text."""
        self._logprobs += [_logprob(entry) for entry in entries]

    def grow(self, text: str) -> list[Json]:
        self.text += text
        new, self._told_logprobs = self._logprobs[self._told_logprobs :], len(self._logprobs)
        return [self._told("output_text.delta", content_index=0, delta=text, logprobs=new)]

    def end(self, status: str) -> list[Json]:
        self._status = status
        return [
            self._told("output_text.done", content_index=0, text=self.text, logprobs=self._logprobs),
            self._told("content_part.done", content_index=0, part=self._part()),
            self._whole("done", self.body()),
        ]

    def body(self) -> Json:
        return {
            "id": self._id,
            "type": "message",
            "status": self._status,
            "role": "assistant",
            "content": [self._part()],
        }

    def _part(self) -> Json:
        return {"type": "output_text", "text": self.text, "annotations": [], "logprobs": list(self._logprobs)}


class ReasoningItem(_Item):
    """The model's thinking, told in full."""

    def begin(self) -> list[Json]:
        added = self._whole("added", {**self.body(), "content": []})
        return [added, self._told("content_part.added", content_index=0, part=self._part())]

    def grow(self, text: str) -> list[Json]:
        self.text += text
        return [self._told("reasoning_text.delta", content_index=0, delta=text)]

    def end(self, status: str) -> list[Json]:
        self._status = status
        return [
            self._told("reasoning_text.done", content_index=0, text=self.text),
            self._told("content_part.done", content_index=0, part=self._part()),
            self._whole("done", self.body()),
        ]

    def body(self) -> Json:
        return {
            "id": self._id,
            "type": "reasoning",
            "status": self._status,
            "summary": [],
            "content": [self._part()],
        }

    def _part(self) -> Json:
        return {"type": "reasoning_text", "text": self.text}


class CallItem(_Item):
    """A function call."""

    def __init__(self, item_id: str, index: int, call_id: str, name: str) -> None:
        super().__init__(item_id, index)
        self.call_id = call_id
        self.name = name

    def begin(self) -> list[Json]:
        return [self._whole("added", self.body())]

    def grow(self, text: str) -> list[Json]:
        self.text += text
        return [self._told("function_call_arguments.delta", delta=text)] if text else []

    def end(self, status: str) -> list[Json]:
        self._status = status
        return [
            self._told("function_call_arguments.done", name=self.name, arguments=self.text),
            self._whole("done", self.body()),
        ]

    def body(self) -> Json:
        return {
            "id": self._id,
            "type": "function_call",
            "status": self._status,
            "call_id": self.call_id,
            "name": self.name,
            "arguments": self.text,
        }


def _logprob(entry: Json) -> Json:
    """One entry of chat's log-probabilities; `bytes` may not be null here."""
    top = [{**item, "bytes": item.get("bytes") or []} for item in entry.get("top_logprobs") or ()]
    return {**entry, "bytes": entry.get("bytes") or [], "top_logprobs": top}
