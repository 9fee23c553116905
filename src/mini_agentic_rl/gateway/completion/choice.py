"""One answer as it grows: the sampled tokens beside the text and tool calls that they make.

Ids and log-probabilities are cut and extended together, always: a stop string found in the text ends both right after
the token that completes it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import Any

from ...tokens import FinishReason, TokenDelta
from ..dialects import assistant_message
from ..render.decoding import AnswerPart, AnswerReader, Decoder, Detokenizer, Thought
from ..tool_formats import ToolCall


class BeginningOf:
    """Follow how much of a stop string the end of a growing text is (Knuth, Morris and Pratt 1977).

    A further character costs the same however long the stop string is.

    Args:
        stop: the stop string.
    """

    def __init__(self, stop: str) -> None:
        self._stop = stop
        self._shorter = _shorter_beginnings(stop)
        self._size = 0

    def follow(self, text: str) -> int:
        """Add text, in which the stop string is not completed; return how many characters at the end begin it."""
        size = self._size
        for character in text:
            while size and self._stop[size] != character:
                size = self._shorter[size - 1]
            if self._stop[size] == character:
                size += 1
        self._size = size
        return size


@lru_cache(maxsize=256)
def _shorter_beginnings(stop: str) -> tuple[int, ...]:
    """Return, for each beginning of a stop string, the size of its longest end that is a shorter beginning."""
    sizes = [0]
    size = 0
    for character in stop[1:]:
        while size and stop[size] != character:
            size = sizes[size - 1]
        if stop[size] == character:
            size += 1
        sizes.append(size)
    return tuple(sizes)


class Choice:
    """Takes deltas, gives out parts of content.

    Args:
        index: number of the answer within its response.
        decoder: turns ids into text.
        end_ids: ids that end an answer; the last one sampled makes no text.
        stops: stop strings.
        reader: tells thought, content and tool calls apart; None takes all of the text for content.
        prefix: text that the prompt has already put into the answer.
        stop_ids: ids that end the answer at the client's wish; they make no text either.
        must_call: whether the answer is nothing but calls: one that the length bound cuts off is no text then.
        streamed: whether `take` has to give out parts as they come; otherwise the text is made once, at the end.
        one_call: whether the answer ends with its first tool call.
    """

    def __init__(
        self,
        index: int,
        decoder: Decoder,
        *,
        end_ids: Collection[int] = (),
        stops: Sequence[str] = (),
        reader: AnswerReader | None = None,
        prefix: str = "",
        stop_ids: Collection[int] = (),
        must_call: bool = False,
        streamed: bool = False,
        one_call: bool = False,
    ) -> None:
        self.index = index
        self.token_ids: list[int] = []
        self.logprobs: list[float] = []
        self.top_logprobs: list[tuple[tuple[int, float], ...]] = []
        self.forced: list[int] = []
        self.failure = ""
        self.finish_reason: FinishReason | None = None
        self.stop_string: str | None = None
        """The stop string that ended the answer."""
        self.version = 0
        self.versions: list[int] = []
        """Policy version that sampled each token."""
        self.cached_tokens = 0
        self.calls: list[ToolCall] = []
        self._content: list[str] = []
        self._thought: list[str] = []
        self._decoder = decoder
        self._end_ids = frozenset((*end_ids, *stop_ids))
        self._stop_ids = frozenset(stop_ids) - frozenset(end_ids)
        self._must_call = must_call
        self._stops = tuple(stops)
        self._starts = [BeginningOf(stop) for stop in stops]
        self._one_call = one_call
        self._cuts = bool(stops) or one_call
        """True if what the text says may end the answer, right after the token that says it."""
        self._stepwise = streamed or self._cuts
        self._detokenizer = Detokenizer(decoder)
        self._text = ""
        self._given = 0
        self._reader = reader
        self._early = self._scan(prefix) if prefix else []

    @property
    def content(self) -> str:
        """The text of the answer without its thought and its tool calls."""
        return "".join(self._content)

    @property
    def thought(self) -> str | None:
        """The thought before the content; None when there is none."""
        return "".join(self._thought) if self._reader is not None and self._reader.thought_found else None

    @property
    def stop_reason(self) -> str | int | None:
        """The stop string, or the token id of the client's, that ended the answer."""
        stopped = self.stop_string is None and self.finish_reason == "stop" and bool(self.token_ids)
        return self.token_ids[-1] if stopped and self.token_ids[-1] in self._stop_ids else self.stop_string

    @property
    def api_finish_reason(self) -> str:
        """The finish reason as OpenAI names it."""
        return "tool_calls" if self.calls else self.finish_reason or "stop"

    def message(self) -> dict[str, Any]:
        """Return the answer as an OpenAI message."""
        return assistant_message(self.content, self.thought, [call.as_message() for call in self.calls])

    def take(self, delta: TokenDelta) -> list[AnswerPart]:
        """Add a delta; return the parts that became certain. `finish_reason` is set once the answer is complete."""
        if not self.token_ids:
            self.version = delta.version
        self.cached_tokens = self.cached_tokens or delta.cached_tokens
        parts = self._take_early()
        count = len(delta.token_ids)
        step = 1 if self._cuts else max(1, count)
        for start in range(0, count, step):
            new = self._book(delta, start, start + step)
            if self._stepwise and new:
                parts += self._grow(self._detokenizer.add(*new))
                if self.finish_reason is not None:
                    return parts
        if delta.finish_reason is not None:
            self.failure = delta.failure
            parts += self.finish(delta.finish_reason)
        return parts

    def _book(self, delta: TokenDelta, start: int, end: int) -> list[int]:
        """Keep the tokens of a delta from `start` to before `end`; return those of them that make text."""
        new = delta.token_ids[start:end]
        if delta.forced:
            first = len(self.token_ids) - start
            self.forced += [first + at for at in range(start, start + len(new)) if delta.forced[at]]
        self.token_ids += new
        self.logprobs += delta.logprobs[start:end]
        self.versions += [delta.version] * len(new)
        self.top_logprobs += delta.top_logprobs[start:end]
        return [token_id for token_id in new if token_id not in self._end_ids]

    def finish(self, reason: FinishReason) -> list[AnswerPart]:
        """End the answer; return the rest of its parts."""
        if self._stepwise:
            parts = self._take_early() + self._grow(self._detokenizer.finish())
            if self.finish_reason is not None:
                return parts
        else:
            parts = self._take_early()
            text_ids = [token_id for token_id in self.token_ids if token_id not in self._end_ids]
            self._text = self._decoder(text_ids)
        return parts + self._close(reason, len(self._text))

    def _take_early(self) -> list[AnswerPart]:
        parts, self._early = self._early, []
        return parts

    def _grow(self, text: str) -> list[AnswerPart]:
        if not text:
            return []
        longest = max((len(stop) for stop in self._stops), default=0)
        searched = max(0, len(self._text) - longest + 1)
        self._text += text
        stops = [(at, stop) for stop in self._stops if (at := self._text.find(stop, searched)) >= 0]
        if stops:
            end, self.stop_string = min(stops)
            return self._close("stop", end)
        begun = max((start.follow(text) for start in self._starts), default=0)
        parts = self._scan(self._advance(len(self._text) - begun))
        if self._one_call and self.calls:
            self.finish_reason = "stop"
        return parts

    def _close(self, reason: FinishReason, end: int) -> list[AnswerPart]:
        self.finish_reason = reason
        parts = self._scan(self._advance(end))
        if self._reader is None:
            return parts
        rest = self._reader.finish()
        if self._must_call and reason == "length":
            rest = [part for part in rest if not isinstance(part, str)]
        return parts + self._keep(rest)

    def _advance(self, end: int) -> str:
        text = self._text[self._given : end]
        self._given = max(self._given, end)
        return text

    def _scan(self, text: str) -> list[AnswerPart]:
        if not text:
            return []
        return self._keep(self._reader.feed(text) if self._reader else [text])

    def _keep(self, parts: list[AnswerPart]) -> list[AnswerPart]:
        if self._one_call:
            parts = self._through_first_call(parts)
        for part in parts:
            if isinstance(part, ToolCall):
                self.calls.append(part)
            elif isinstance(part, Thought):
                self._thought.append(part.text)
            else:
                self._content.append(part)
        return parts

    def _through_first_call(self, parts: list[AnswerPart]) -> list[AnswerPart]:
        """Return what is left of `parts` when nothing may follow the first call."""
        if self.calls:
            return []
        first = next((at for at, part in enumerate(parts) if isinstance(part, ToolCall)), len(parts))
        return parts[: first + 1]
