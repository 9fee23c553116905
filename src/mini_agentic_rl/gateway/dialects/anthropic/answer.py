"""A message as it grows out of a chat completion, whole or chunk by chunk: its object and its events."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Collection
from typing import Final

from ...errors import UnavailableError
from ...growing_text import GrowingText
from ...tool_formats import parse_arguments
from ..base import MOST_ITEMS, Json
from ..chat_reader import CallDelta, ChatReader
from .request import INVALID_JSON

_STOP_REASONS: Final = {"tool_calls": "tool_use", "length": "max_tokens", "content_filter": "refusal"}
# How a piece of each kind of block is told: the type of the delta, and its field.
_DELTAS: Final = {
    "text": ("text_delta", "text"),
    "thinking": ("thinking_delta", "thinking"),
    "tool_use": ("input_json_delta", "partial_json"),
}


class _Block:
    """One content block: its kind, what it says so far (JSON text for a call), and a call's id and name."""

    def __init__(self, kind: str, call: CallDelta | None = None) -> None:
        self.kind = kind
        self.said = GrowingText()
        self.call_id = (call.id or f"toolu_{uuid.uuid4().hex[:24]}") if call is not None else ""
        self.name = call.name if call is not None else ""

    @property
    def text(self) -> str:
        """Text that it says so far."""
        return str(self.said)

    @property
    def signature(self) -> str:
        """A digest: some clients drop thinking that is not signed. Nothing here checks it.

        Empty as long as there is no text.
        """
        return hashlib.sha256(self.text.encode("utf-8", "replace")).hexdigest() if self.text else ""

    def body(self) -> Json:
        """Return the block as it stands."""
        if self.kind == "text":
            return {"type": "text", "text": self.text}
        if self.kind == "thinking":
            return {"type": "thinking", "thinking": self.text, "signature": self.signature}
        arguments = parse_arguments(self.text)
        given = arguments if isinstance(arguments, dict) else {INVALID_JSON: self.text}
        return {"type": "tool_use", "id": self.call_id, "name": self.name, "input": given}


class MessageAnswer:
    """The answer to one request. `take` what comes, then `finish`.

    Args:
        model: the model that was asked for.
        stop_sequences: those of the request.
        with_ids: whether token ids are told.
    """

    def __init__(self, model: str, stop_sequences: Collection[str], with_ids: bool) -> None:
        self._model = model
        self._stop_sequences = stop_sequences
        self._with_ids = with_ids
        self._completion = ChatReader()
        self._blocks: list[_Block] = []
        self._calls: dict[int, _Block] = {}
        self._id = ""
        self._begun = False
        self._open = False
        """True if the last block still grows."""

    def take(self, body: Json) -> list[Json]:
        """Read a completion or a chunk of one; return the events that tell of it.

        Raises:
            UnavailableError: an upstream went on with a tool call after it had begun another block.
        """
        part = self._completion.take(body)
        events = self._begin()
        if part.reasoning:
            events += self._grow_text("thinking", part.reasoning)
        if part.text:
            events += self._grow_text("text", part.text)
        for call in part.calls:
            events += self._grow_call(call)
        return events

    def finish(self) -> list[Json]:
        """End the answer; return its last events."""
        events = self._begin() + self._close()
        delta: Json = {
            "type": "message_delta",
            "delta": {"stop_reason": self.stop_reason, "stop_sequence": self._stop_sequence},
            "usage": self._usage(),
        }
        if self._with_ids:
            delta["token_ids"] = self._completion.token_ids
        return [*events, delta, {"type": "message_stop"}]

    def body(self) -> Json:
        """Return the message, once it is finished."""
        body = {
            **self._head(),
            "content": [block.body() for block in self._blocks],
            "stop_reason": self.stop_reason,
            "stop_sequence": self._stop_sequence,
            "usage": self._usage(),
        }
        return {**body, "token_ids": self._completion.token_ids} if self._with_ids else body

    @property
    def stop_reason(self) -> str:
        """Return the reason why the answer ended, as Anthropic names it."""
        if self._stop_sequence is not None:
            return "stop_sequence"
        return _STOP_REASONS.get(self._completion.finish_reason or "", "end_turn")

    @property
    def _stop_sequence(self) -> str | None:
        told = self._completion.stop_string
        return told if self._completion.finish_reason == "stop" and told in self._stop_sequences else None

    def _usage(self) -> Json:
        told = self._completion
        return {
            "input_tokens": max(0, told.prompt_tokens - told.cached_tokens),
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": told.cached_tokens,
            "output_tokens": told.completion_tokens,
        }

    def _head(self) -> Json:
        if not self._id:
            self._id = "msg_" + (self._completion.id.removeprefix("chatcmpl-") or uuid.uuid4().hex)
        head: Json = {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._completion.model or self._model,
        }
        return {**head, "prompt_token_ids": self._completion.prompt_token_ids} if self._with_ids else head

    def _begin(self) -> list[Json]:
        """Return the first event, once. Its usage is as far as the first chunk tells; `message_delta` has the whole."""
        if self._begun:
            return []
        self._begun = True
        message = {
            **self._head(),
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": self._usage(),
        }
        return [{"type": "message_start", "message": message}]

    def _grow_text(self, kind: str, text: str) -> list[Json]:
        events = []
        if not self._open or self._blocks[-1].kind != kind:
            events = self._add(_Block(kind))
        return events + self._grow(text)

    def _grow_call(self, part: CallDelta) -> list[Json]:
        block = self._calls.get(part.index)
        if block is None:
            block = self._calls[part.index] = _Block("tool_use", part)
            return self._add(block) + self._grow(part.arguments)
        if block is not self._blocks[-1]:
            raise UnavailableError("the model's server mixed the parts of several tool calls")
        return self._grow(part.arguments)

    def _grow(self, text: str) -> list[Json]:
        if not text:
            return []
        block = self._blocks[-1]
        block.said.add(text)
        kind, name = _DELTAS[block.kind]
        return [self._told("content_block_delta", delta={"type": kind, name: text})]

    def _add(self, block: _Block) -> list[Json]:
        if len(self._blocks) == MOST_ITEMS:
            raise UnavailableError(f"the model's server went back and forth between more than {MOST_ITEMS} parts")
        events = self._close()
        self._blocks.append(block)
        self._open = True
        return [*events, self._told("content_block_start", content_block=block.body())]

    def _close(self) -> list[Json]:
        if not self._open:
            return []
        self._open = False
        block = self._blocks[-1]
        signed = []
        if block.kind == "thinking":
            delta = {"type": "signature_delta", "signature": block.signature}
            signed = [self._told("content_block_delta", delta=delta)]
        return [*signed, self._told("content_block_stop")]

    def _told(self, kind: str, **fields: object) -> Json:
        return {"type": kind, "index": len(self._blocks) - 1, **fields}
