"""Read a chat completion, whole or chunk by chunk, from the policy or from a server of somebody else.

The answer is untrusted: indices are checked, and the amount that is kept is bounded.

Token ids are read from every place where servers put them. vLLM and MiniLLMServer: `prompt_token_ids` beside the
choices and `token_ids` in each choice. SGLang: in each choice, in the choice's `meta_info.output_token_logprobs`
(log-probability, id, text), or in the last chunk's `sglext` (`input_ids`, and `output_ids` for each choice).
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from io import StringIO
from typing import Any, Final

from ...chat_messages import thought_of
from ..render.messages import assistant_message

MAX_CHOICES: Final = 128
"""Answers to one request; OpenAI has the same bound."""
MAX_CALLS: Final = 128
"""Tool calls in one answer; OpenAI has the same bound for tools."""
MAX_CHARACTERS: Final = 16 * 1024 * 1024
"""Characters of all answers to a request; a token has about four."""
MAX_TOKENS: Final = 1_000_000
"""Token ids of all answers to a request; the same bound holds for log-probabilities."""

_LONGEST_NAME: Final = 1000
_MAX_COUNT: Final = 2**31


@dataclass(frozen=True)
class CallDelta:
    """A tool call, or a further piece of one."""

    index: int
    """Number of the call in the answer."""
    id: str
    """Generated if the server sends none."""
    name: str
    arguments: str
    """JSON text, or a piece of it."""


@dataclass(frozen=True)
class AnswerDelta:
    """An addition to the first answer."""

    reasoning: str = ""
    text: str = ""
    calls: tuple[CallDelta, ...] = ()


@dataclass
class Room:
    """What may still be kept of an answer."""

    characters: int = MAX_CHARACTERS
    tokens: int = MAX_TOKENS
    logprobs: int = MAX_TOKENS

    def take(self, resource: str, count: int) -> None:
        """Use some of a resource; raises ValueError if it is exhausted."""
        left = getattr(self, resource) - count
        if left < 0:
            raise ValueError(f"it is longer than any answer may be: too many {resource}")
        setattr(self, resource, left)


class _ToolCall:
    def __init__(self) -> None:
        self.id = ""
        self.name, self.arguments = StringIO(), StringIO()


class ReadChoice:
    """One of the answers to a request, as far as it has been read."""

    def __init__(self, room: Room) -> None:
        self.finish_reason: str | None = None
        self.stop_string: str | None = None
        """The stop string that ended the answer, if the server reports it (`stop_reason`, as in vLLM)."""
        self.token_ids: list[int] = []
        self.logprobs: list[float] = []
        self._room = room
        self._text = StringIO()
        self._reasoning = StringIO()
        self._calls: list[_ToolCall] = []

    @property
    def message(self) -> dict[str, Any]:
        """The message so far, in the form of chat completions."""
        calls = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name.getvalue(), "arguments": call.arguments.getvalue()},
            }
            for call in self._calls
        ]
        return assistant_message(self._text.getvalue(), self._reasoning.getvalue() or None, calls)

    def extend(self, part: Mapping[str, Any]) -> AnswerDelta:
        """Add a whole message or the `delta` of a chunk; return what it adds."""
        content = part.get("content")
        text, reasoning = content if isinstance(content, str) else "", thought_of(part) or ""
        self._room.take("characters", len(text) + len(reasoning))
        self._text.write(text)
        self._reasoning.write(reasoning)
        return AnswerDelta(reasoning, text, tuple(self._extend_call(call) for call in part.get("tool_calls") or ()))

    def _extend_call(self, part: dict[str, Any]) -> CallDelta:
        calls = self._calls
        index = _index(part.get("index", len(calls)), MAX_CALLS, "tool calls")
        while len(calls) <= index:
            calls.append(_ToolCall())
        call, function = calls[index], part.get("function") or {}
        call.id = _name(part.get("id")) or call.id or f"call_{uuid.uuid4().hex[:24]}"
        name, arguments = function.get("name") or "", function.get("arguments") or ""
        self._room.take("characters", len(name) + len(arguments))
        call.name.write(name)
        call.arguments.write(arguments)
        return CallDelta(index, call.id, name, arguments)


@dataclass
class ChatReader:
    """An answer as it arrives."""

    id: str = ""
    created: int = 0
    model: str = ""
    prompt_ids: list[int] = field(default_factory=list)
    choices: dict[int, ReadChoice] = field(default_factory=dict)
    """The answers by their index."""
    usage: dict[str, Any] = field(default_factory=dict)
    room: Room = field(default_factory=Room)

    def take(self, body: Mapping[str, Any]) -> AnswerDelta:
        """Read a `chat.completion` or a `chat.completion.chunk`; return its addition to the first answer.

        Raises:
            TypeError, ValueError, AttributeError, LookupError, OverflowError: it is not a chat completion, or too
                large.
        """
        self.id = self.id or _name(body.get("id"))
        self.model = self.model or _name(body.get("model"))
        self.created = self.created or _count(body.get("created"))
        self.prompt_ids = _ids(body.get("prompt_token_ids")) or self.prompt_ids
        usage = body.get("usage")
        self.usage = usage if isinstance(usage, dict) and usage else self.usage
        delta = AnswerDelta()
        for item in body.get("choices") or ():
            if isinstance(item, dict):
                added = self._take_choice(item)
                delta = delta if item.get("index") else added
        extension = body.get("sglext")
        if isinstance(extension, dict):
            self.prompt_ids = _ids(extension.get("input_ids")) or self.prompt_ids
            for index, ids in enumerate(extension.get("output_ids") or ()):
                self._choice(index).token_ids = _ids(ids)
                self.room.take("tokens", len(self._choice(index).token_ids))
        return delta

    def _choice(self, index: Any) -> ReadChoice:
        known = self.choices.get(_index(index, MAX_CHOICES, "choices"))
        if known is None:
            known = self.choices[index] = ReadChoice(self.room)
        return known

    def _take_choice(self, item: dict[str, Any]) -> AnswerDelta:
        choice = self._choice(item.get("index") or 0)
        part = item.get("message") or item.get("delta")
        delta = choice.extend(part) if isinstance(part, dict) else AnswerDelta()
        choice.finish_reason = _name(item.get("finish_reason")) or choice.finish_reason
        choice.stop_string = _name(item.get("stop_reason")) or choice.stop_string
        self.prompt_ids = _ids(item.get("prompt_token_ids")) or self.prompt_ids
        ids = _ids(item.get("token_ids"))
        meta_info = item.get("meta_info")
        if not ids and isinstance(meta_info, dict):
            ids = _ids([row[1] for row in meta_info.get("output_token_logprobs") or ()])
        self.room.take("tokens", len(ids))
        choice.token_ids += ids
        logprobs = item.get("logprobs")
        if isinstance(logprobs, dict):
            entries = list(logprobs.get("content") or ())
            self.room.take("logprobs", len(entries))
            choice.logprobs += [_logprob(entry["logprob"]) for entry in entries]
        return delta

    @property
    def first(self) -> ReadChoice:
        """The first answer; an empty one if none has arrived."""
        return self.choices.get(0) or ReadChoice(self.room)

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return _count(self.usage.get("prompt_tokens")) or len(self.prompt_ids)

    @property
    def completion_tokens(self) -> int:
        """Tokens of all answers."""
        sampled = sum(len(choice.token_ids) for choice in self.choices.values())
        return _count(self.usage.get("completion_tokens")) or sampled

    @property
    def cached_tokens(self) -> int:
        """Tokens of the prompt that were found in a prefix cache."""
        details = self.usage.get("prompt_tokens_details")
        return _count(details.get("cached_tokens")) if isinstance(details, dict) else 0

    @property
    def reasoning_tokens(self) -> int:
        """Tokens of the answer that are reasoning."""
        details = self.usage.get("completion_tokens_details")
        return _count(details.get("reasoning_tokens")) if isinstance(details, dict) else 0


def _ids(value: Any) -> list[int]:
    """Return token ids; raises ValueError for a value that is not one."""
    if not isinstance(value, list):
        return []
    ids = []
    for number in value:
        if isinstance(number, bool) or not isinstance(number, int | float) or not 0 <= number < _MAX_COUNT:
            raise ValueError(f"{str(number)[:50]!r} is not a token id")
        ids.append(int(number))
    return ids


def _logprob(value: Any) -> float:
    number = float(value)
    if math.isnan(number) or number == math.inf:
        raise ValueError(f"{number} is not a log-probability")
    return number


def _index(value: Any, limit: int, kind: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < limit:
        raise ValueError(f"{str(value)[:50]!r} among its {kind}: expected 0 to {limit - 1}")
    return value


def _name(value: Any) -> str:
    return value[:_LONGEST_NAME] if isinstance(value, str) else ""


def _count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MAX_COUNT else 0
