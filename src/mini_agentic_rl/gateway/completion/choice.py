"""One answer as it grows: token deltas come in, parts of the answer go out.

Ids and log-probabilities are always cut and extended together. A stop string in the text ends both after the token that
completes it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import InitVar, dataclass
from typing import Any

from ...tokens import FinishReason, TokenDelta
from ..render.decoding import AnswerPart, AnswerReader, Decoder, Detokenizer, Thought
from ..render.messages import assistant_message
from ..tool_formats import ToolCall, partial_end


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
        """Policy version of the first token."""
        self.versions: list[int] = []
        """Policy version of each token."""
        self.cached_tokens = 0
        self.calls: list[ToolCall] = []
        self.begun = False
        """True once a chunk with this choice was sent."""
        self.sent_tokens = 0
        self.sent_calls = 0
        self._parts: list[AnswerPart] = []
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
        return "".join(part for part in self._parts if isinstance(part, str))

    @property
    def thought(self) -> str | None:
        """The thought before the content; None without one."""
        if self.reader is None or not self.reader.thought_found:
            return None
        return "".join(part.text for part in self._parts if isinstance(part, Thought))

    @property
    def stop_reason(self) -> str | int | None:
        """The stop string or the client's stop id that ended the answer."""
        last = self.token_ids[-1] if self.token_ids and self.finish_reason == "stop" else None
        by_client = last in self.stop_ids and last not in self.end_ids
        return last if self.stop_string is None and by_client else self.stop_string

    def message(self) -> dict[str, Any]:
        """Return the answer as an OpenAI message."""
        return assistant_message(self.content, self.thought, [call.as_message() for call in self.calls])

    def take(self, delta: TokenDelta) -> list[AnswerPart]:
        """Add a delta; return the parts that are certain by now. A complete answer has a `finish_reason`."""
        if not self.token_ids:
            self.version = delta.version
        self.cached_tokens = self.cached_tokens or delta.cached_tokens
        parts, self._early = self._early, []
        step = 1 if self._cuts else max(1, len(delta.token_ids))
        for start in range(0, len(delta.token_ids), step):
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
        self._parts += parts
        self.calls += [part for part in parts if isinstance(part, ToolCall)]
        return parts
