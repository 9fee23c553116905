"""Reads chat completions for the other dialects: the first answer, from a whole body or from its chunks.

An upstream's answer is foreign text: whatever in it is not of the expected kind is passed over.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ...chat_messages import thought_of
from .base import Json

_LONGEST_NAME = 200


@dataclass(frozen=True)
class CallDelta:
    """A tool call, or a further piece of one."""

    index: int
    """Number of the call in the answer."""
    id: str
    name: str
    arguments: str
    """JSON text, or a piece of it."""


@dataclass(frozen=True)
class AnswerDelta:
    """An addition to the answer."""

    reasoning: str = ""
    text: str = ""
    calls: tuple[CallDelta, ...] = ()
    logprobs: tuple[Json, ...] = ()
    """Entries of OpenAI's `logprobs.content`."""


@dataclass
class ChatReader:
    """One answer as it arrives."""

    id: str = ""
    created: int = 0
    model: str = ""
    finish_reason: str | None = None
    stop_string: str | None = None
    """The stop string that ended it, where the server tells (`stop_reason`, as vLLM names it)."""
    prompt_token_ids: list[int] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    usage: Json = field(default_factory=dict)

    def take(self, body: Json) -> AnswerDelta:
        """Read a `chat.completion` or a `chat.completion.chunk`; return what it adds."""
        self.id = self.id or _text(body.get("id"))[:_LONGEST_NAME]
        self.model = self.model or _text(body.get("model"))[:_LONGEST_NAME]
        self.created = self.created or _count(body.get("created"))
        self.prompt_token_ids = self.prompt_token_ids or _ids(body.get("prompt_token_ids"))
        self.usage = _object(body.get("usage")) or self.usage
        for choice in _objects(body.get("choices")):
            if not choice.get("index"):
                return self._take_choice(choice)
        return AnswerDelta()

    def _take_choice(self, choice: Json) -> AnswerDelta:
        self.finish_reason = _text(choice.get("finish_reason")) or self.finish_reason
        self.stop_string = _text(choice.get("stop_reason")) or self.stop_string
        self.token_ids += _ids(choice.get("token_ids"))
        said = _object(choice.get("message")) or _object(choice.get("delta"))
        return AnswerDelta(
            reasoning=thought_of(said) or "",
            text=_text(said.get("content")),
            calls=tuple(_calls(said.get("tool_calls"))),
            logprobs=tuple(_objects(_object(choice.get("logprobs")).get("content"))),
        )

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt, as the server counts them."""
        return _count(self.usage.get("prompt_tokens"))

    @property
    def completion_tokens(self) -> int:
        """Tokens of the answer, as the server counts them."""
        return _count(self.usage.get("completion_tokens"))

    @property
    def cached_tokens(self) -> int:
        """Tokens of the prompt that were not computed again."""
        return _count(_object(self.usage.get("prompt_tokens_details")).get("cached_tokens"))

    @property
    def reasoning_tokens(self) -> int:
        """Tokens of the answer that are reasoning."""
        return _count(_object(self.usage.get("completion_tokens_details")).get("reasoning_tokens"))


def _calls(value: Any) -> Iterator[CallDelta]:
    for position, call in enumerate(_objects(value)):
        function = _object(call.get("function"))
        index = call.get("index")
        yield CallDelta(
            index=index if isinstance(index, int) else position,
            id=_text(call.get("id")),
            name=_text(function.get("name")),
            arguments=_text(function.get("arguments")),
        )


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53 else 0


def _object(value: Any) -> Json:
    return value if isinstance(value, dict) else {}


def _objects(value: Any) -> list[Json]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _ids(value: Any) -> list[int]:
    return [item for item in value if isinstance(item, int)] if isinstance(value, list) else []
