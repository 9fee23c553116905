"""One answer as it grows: the sampled tokens beside the text and tool calls that they make.

Ids and log-probabilities are cut and extended together, always: a stop string found in the text ends both right after
the token that completes it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from mini_agentic_rl.tokens import FinishReason, TokenDelta

from .chat_template import Tokenizer
from .detokenizer import Detokenizer
from .tool_calls import ToolCall, ToolCallScanner

Piece = str | ToolCall


class Choice:
    """Takes deltas, gives out pieces of content.

    Args:
        index: number of the answer within its response.
        tokenizer: turns ids into text.
        end_ids: ids that end an answer; the last one sampled makes no text.
        stops: stop strings.
        read_calls: whether tool calls are read out of the text.
        prefix: text that the prompt has already put into the answer.
        streamed: whether `take` has to give out pieces as they come; otherwise the text is made once, at the end.
    """

    def __init__(
        self,
        index: int,
        tokenizer: Tokenizer,
        *,
        end_ids: Collection[int] = (),
        stops: Sequence[str] = (),
        read_calls: bool = False,
        prefix: str = "",
        streamed: bool = False,
    ) -> None:
        self.index = index
        self.token_ids: list[int] = []
        self.logprobs: list[float] = []
        self.top_logprobs: list[tuple[tuple[int, float], ...]] = []
        self.finish_reason: FinishReason | None = None
        self.version = 0
        self.cached_tokens = 0
        self.calls: list[ToolCall] = []
        self._content: list[str] = []
        self._tokenizer = tokenizer
        self._end_ids = frozenset(end_ids)
        self._stops = tuple(stops)
        self._stepwise = streamed or bool(stops)
        self._detokenizer = Detokenizer(tokenizer)
        self._text = ""
        self._given = 0
        self._scanner = ToolCallScanner() if read_calls else None
        self._early = self._scan(prefix) if prefix else []

    @property
    def content(self) -> str:
        """The text of the answer without its tool calls."""
        return "".join(self._content)

    @property
    def api_finish_reason(self) -> str:
        """The finish reason as OpenAI names it."""
        return "tool_calls" if self.calls else self.finish_reason or "stop"

    def message(self) -> dict[str, Any]:
        """The answer as an OpenAI message."""
        message: dict[str, Any] = {"role": "assistant", "content": self.content or (None if self.calls else "")}
        if self.calls:
            message["tool_calls"] = [call.as_message() for call in self.calls]
        return message

    def take(self, delta: TokenDelta) -> list[Piece]:
        """Add a delta; returns the pieces that became certain. `finish_reason` is set once the answer is complete."""
        if not self.token_ids:
            self.version = delta.version
        self.cached_tokens = self.cached_tokens or delta.cached_tokens
        pieces = self._take_early()
        for position, token_id in enumerate(delta.token_ids):
            self.token_ids.append(token_id)
            self.logprobs.append(delta.logprobs[position])
            if delta.top_logprobs:
                self.top_logprobs.append(delta.top_logprobs[position])
            if self._stepwise and token_id not in self._end_ids:
                pieces += self._grow(self._detokenizer.add(token_id))
                if self.finish_reason is not None:
                    return pieces
        if delta.finish_reason is not None:
            pieces += self.finish(delta.finish_reason)
        return pieces

    def finish(self, reason: FinishReason) -> list[Piece]:
        """End the answer; returns the rest of its pieces."""
        if self._stepwise:
            pieces = self._take_early() + self._grow(self._detokenizer.finish())
            if self.finish_reason is not None:
                return pieces
        else:
            pieces = self._take_early()
            text_ids = [token_id for token_id in self.token_ids if token_id not in self._end_ids]
            self._text = self._tokenizer.decode(text_ids, skip_special_tokens=True)
        return pieces + self._close(reason, len(self._text))

    def _take_early(self) -> list[Piece]:
        pieces, self._early = self._early, []
        return pieces

    def _grow(self, text: str) -> list[Piece]:
        if not text:
            return []
        longest = max((len(stop) for stop in self._stops), default=0)
        searched = max(0, len(self._text) - longest + 1)
        self._text += text
        found = [at for at in (self._text.find(stop, searched) for stop in self._stops) if at >= 0]
        if found:
            return self._close("stop", min(found))
        return self._scan(self._advance(len(self._text) - self._possible_stop()))

    def _possible_stop(self) -> int:
        """How many characters at the end may begin a stop string."""
        longest = max((len(stop) for stop in self._stops), default=0)
        for size in range(min(longest - 1, len(self._text)), 0, -1):
            if any(stop.startswith(self._text[-size:]) for stop in self._stops):
                return size
        return 0

    def _close(self, reason: FinishReason, end: int) -> list[Piece]:
        self.finish_reason = reason
        pieces = self._scan(self._advance(end))
        return pieces + self._keep(self._scanner.finish()) if self._scanner else pieces

    def _advance(self, end: int) -> str:
        text = self._text[self._given : end]
        self._given = max(self._given, end)
        return text

    def _scan(self, text: str) -> list[Piece]:
        if not text:
            return []
        return self._keep(self._scanner.feed(text) if self._scanner else [text])

    def _keep(self, pieces: list[Piece]) -> list[Piece]:
        for piece in pieces:
            if isinstance(piece, ToolCall):
                self.calls.append(piece)
            else:
                self._content.append(piece)
        return pieces
