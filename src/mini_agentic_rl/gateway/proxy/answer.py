"""The answer of an upstream to a chat request, gathered from one JSON body or from a stream of chunks.

Token ids are read wherever servers put them: vLLM and MiniLLMServer beside the choices (`prompt_token_ids`) and in each
choice (`token_ids`); SGLang in each choice, in the choice's `meta_info.output_token_logprobs` (log-probability, id,
text), or all at once in the last chunk's `sglext` (`input_ids`, and `output_ids` for each choice).

An upstream may be hostile: what it numbers is bounded, and so is what is kept of it, however it comes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ..growing_text import GrowingText

MOST_CHOICES: Final = 128
"""Most answers to one request, as OpenAI has it."""
MOST_CALLS: Final = 128
"""Most tool calls of one answer: as many as OpenAI takes tools."""
MOST_FIELDS: Final = 64
"""Most fields of one message."""
MOST_CHARACTERS: Final = 16 * 1024 * 1024
"""Most characters of all answers together; a token has about four."""
MOST_TOKENS: Final = 1_000_000
"""Most token ids of all answers together, and most log-probabilities."""
MOST_WEIGHT: Final = 8_000_000
"""Most weight, all together, of chunks of which something other than text and tokens is kept."""

_LONGEST_NAME: Final = 1000
_MOST_COUNT: Final = 2**31


@dataclass
class _ToolCall:
    id: str = ""
    name: GrowingText = field(default_factory=GrowingText)
    arguments: GrowingText = field(default_factory=GrowingText)

    def body(self) -> dict[str, Any]:
        function = {"name": str(self.name), "arguments": str(self.arguments)}
        return {"id": self.id, "type": "function", "function": function}


@dataclass
class _Room:
    """Count down what may still be kept of an answer."""

    characters: int = MOST_CHARACTERS
    tokens: int = MOST_TOKENS
    logprobs: int = MOST_TOKENS
    weight: int = MOST_WEIGHT

    def take(self, what: str, count: int) -> None:
        left = getattr(self, what) - count
        if left < 0:
            raise ValueError(f"it is longer than any answer may be: too many {what}")
        setattr(self, what, left)


class UpstreamChoice:
    """One answer of several."""

    def __init__(self, room: _Room) -> None:
        self.finish_reason: str | None = None
        self.token_ids: list[int] = []
        self.logprobs: list[float] = []
        self._room = room
        self._fields: dict[str, Any] = {"role": "assistant", "content": None}
        self._calls: list[_ToolCall] | None = None

    @property
    def message(self) -> dict[str, Any]:
        """The message so far, as chat completions have it."""
        message = {key: str(value) if isinstance(value, GrowingText) else value for key, value in self._fields.items()}
        if self._calls is not None:
            message["tool_calls"] = [call.body() for call in self._calls]
        return message

    def replace(self, message: Mapping[str, Any], weight: int) -> None:
        """Take a whole message."""
        calls = message.get("tool_calls")
        if isinstance(calls, list) and len(calls) > MOST_CALLS:
            raise ValueError(f"it makes more than {MOST_CALLS} tool calls")
        self._fields = {}
        for key, value in message.items():
            if value is not None or key == "content":
                self._keep(key, value)
        self._room.take("weight", weight)

    def add(self, delta: Mapping[str, Any], weight: int) -> None:
        """Take the `delta` of a chunk: text is joined, and so are the arguments of tool calls."""
        for key, value in delta.items():
            if key == "tool_calls":
                for part in value or ():
                    self._add_call(part)
            elif isinstance(value, str) and key != "role":
                self._room.take("characters", len(value))
                known = self._fields.get(key)
                if not isinstance(known, GrowingText):
                    known = GrowingText(known if isinstance(known, str) else "")
                    self._keep(key, known)
                known.add(value)
            elif value is not None:
                if key != "role":
                    self._room.take("weight", weight)
                self._keep(key, value)

    def _keep(self, key: str, value: Any) -> None:
        self._fields[key] = value
        if len(self._fields) > MOST_FIELDS:
            raise ValueError(f"its message has more than {MOST_FIELDS} fields")

    def _add_call(self, part: dict[str, Any]) -> None:
        calls = self._calls = [] if self._calls is None else self._calls
        index = _index(part.get("index", len(calls)), MOST_CALLS, "tool calls")
        while len(calls) <= index:
            calls.append(_ToolCall())
        call, function = calls[index], part.get("function") or {}
        call.id = _name(part.get("id")) or call.id
        for text, piece in ((call.name, function.get("name")), (call.arguments, function.get("arguments"))):
            if piece:
                self._room.take("characters", len(piece))
                text.add(piece + "")


@dataclass
class UpstreamAnswer:
    """A whole answer, or what has come of it."""

    response_id: str = ""
    model: str = ""
    prompt_ids: list[int] = field(default_factory=list)
    choices: dict[int, UpstreamChoice] = field(default_factory=dict)
    usage: dict[str, Any] = field(default_factory=dict)
    _room: _Room = field(default_factory=_Room)

    @property
    def tokens(self) -> tuple[int, int, int]:
        """Tokens of the prompt, those of them found in a cache, and tokens sampled, as far as the server tells."""
        details = self.usage.get("prompt_tokens_details")
        sampled = sum(len(choice.token_ids) for choice in self.choices.values())
        return (
            _count(self.usage.get("prompt_tokens")) or len(self.prompt_ids),
            _count(details.get("cached_tokens")) if isinstance(details, dict) else 0,
            _count(self.usage.get("completion_tokens")) or sampled,
        )

    def take(self, part: dict[str, Any], weight: int = 0) -> None:
        """Read a whole answer or a chunk.

        Args:
            part: the answer or the chunk.
            weight: the JSON values in it, and its bytes by 64: what it takes to keep it.

        Raises:
            TypeError, ValueError, AttributeError, KeyError, IndexError: it is not of the form that chat completions
                have, or too large.
        """
        self.response_id = _name(part.get("id")) or self.response_id
        self.model = _name(part.get("model")) or self.model
        self.prompt_ids = _ids(part.get("prompt_token_ids")) or self.prompt_ids
        usage = part.get("usage")
        self.usage = usage if isinstance(usage, dict) and usage else self.usage
        for item in part.get("choices") or ():
            if isinstance(item, dict):
                self._take_choice(item, weight)
        extension = part.get("sglext")
        if isinstance(extension, dict):
            self.prompt_ids = _ids(extension.get("input_ids")) or self.prompt_ids
            for index, ids in enumerate(extension.get("output_ids") or ()):
                self._choice(index).token_ids = _ids(ids)
                self._room.take("tokens", len(self._choice(index).token_ids))

    def _choice(self, index: Any) -> UpstreamChoice:
        known = self.choices.get(_index(index, MOST_CHOICES, "choices"))
        if known is None:
            known = self.choices[index] = UpstreamChoice(self._room)
        return known

    def _take_choice(self, item: dict[str, Any], weight: int) -> None:
        choice = self._choice(item.get("index") or 0)
        if isinstance(item.get("message"), dict):
            choice.replace(item["message"], weight)
        if isinstance(item.get("delta"), dict):
            choice.add(item["delta"], weight)
        choice.finish_reason = _name(item.get("finish_reason")) or choice.finish_reason
        self.prompt_ids = _ids(item.get("prompt_token_ids")) or self.prompt_ids
        ids = _ids(item.get("token_ids")) or _sampled_ids(item.get("meta_info"))
        self._room.take("tokens", len(ids))
        choice.token_ids += ids
        logprobs = item.get("logprobs")
        if isinstance(logprobs, dict):
            content = logprobs.get("content") or ()
            self._room.take("logprobs", len(content))
            choice.logprobs += [_logprob(entry["logprob"]) for entry in content]


def _sampled_ids(meta_info: Any) -> list[int]:
    rows = meta_info.get("output_token_logprobs") if isinstance(meta_info, dict) else None
    return _ids([row[1] for row in rows or ()])


def _ids(value: Any) -> list[int]:
    """Return token ids.

    Raises:
        ValueError: one of them is none.
    """
    if not isinstance(value, list):
        return []
    ids = []
    for number in value:
        if isinstance(number, bool) or not isinstance(number, int | float) or not 0 <= number < _MOST_COUNT:
            raise ValueError(f"{str(number)[:50]!r} is no token id")
        ids.append(int(number))
    return ids


def _logprob(value: Any) -> float:
    number = float(value)
    if math.isnan(number) or number == math.inf:
        raise ValueError(f"{number} is no log-probability")
    return number


def _index(value: Any, most: int, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < most:
        raise ValueError(f"{str(value)[:50]!r} among its {what}: expected 0 to {most - 1}")
    return value


def _name(value: Any) -> str:
    """Return a short text; what is none, as if it had not been told."""
    return value[:_LONGEST_NAME] if isinstance(value, str) else ""


def _count(value: Any) -> int:
    """Return a count of tokens; 0 for what is none."""
    known = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST_COUNT
    return value if known else 0
