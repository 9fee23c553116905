"""Read an upstream's answer within bounds: nothing of it is trusted to end, to be small, or to be what it says.

Answers are asked for as they are and decompressed here where a server sends gzip all the same, so that what is counted
is what is kept. An answer is gathered from one JSON body or from a stream of chunks: what it numbers is bounded, and so
is what is kept of it, however it comes.

Token ids are read wherever servers put them: vLLM and MiniLLMServer beside the choices (`prompt_token_ids`) and in each
choice (`token_ids`); SGLang in each choice, in the choice's `meta_info.output_token_logprobs` (log-probability, id,
text), or all at once in the last chunk's `sglext` (`input_ids`, and `output_ids` for each choice).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from io import StringIO
from typing import Any, Final

import httpx

from ...http import BadRequestError, Gunzip, GunzipError, TooLargeError, json_object

MOST_BYTES: Final = 64 * 1024 * 1024
"""Most bytes of a whole answer."""
MOST_STREAM_BYTES: Final = 256 * 1024 * 1024
"""Most bytes of a streamed answer; 100,000 tokens with 20 alternatives each take about that."""
MOST_LINES: Final = 1_000_000
"""Most lines of a streamed answer; each token takes two or three."""
MOST_LINE_BYTES: Final = 16 * 1024 * 1024
"""Most bytes of one line of a stream."""
MOST_VALUES: Final = 1_000_000
"""Most values in one JSON text: the ids of a prompt and an answer, each with a few alternatives."""
ACCEPTED: Final = "gzip, identity"
"""The encodings that are read."""

_LARGE: Final = 64 * 1024
_AT_ONCE: Final = 50
"""Lines, or pieces of an answer, that are read before others get their turn; many of either may lie in what has been
received, as small as a byte each."""


class UnreadableAnswerError(ValueError):
    """Report an answer beyond a bound, or one that is not what it has to be; the text goes after the server's name."""


async def read_whole(answer: httpx.Response) -> dict[str, Any]:
    """Return the JSON object that an answer is.

    Raises:
        UnreadableAnswerError: it is none, or too large.
        httpx.RequestError: the answer broke off.
    """
    content = bytearray()
    async for piece in _decoded(answer, MOST_BYTES):
        content += piece
    return await asyncio.to_thread(_parsed, content) if len(content) > _LARGE else _parsed(content)


async def read_beginning(answer: httpx.Response, most: int) -> bytes:
    """Return the first bytes of an answer, or what of them comes before it breaks off."""
    content = bytearray()
    with suppress(httpx.RequestError, UnreadableAnswerError):
        async with aclosing(_decoded(answer, most)) as pieces:
            async for piece in pieces:
                content += piece
    return bytes(content)


async def read_events(answer: httpx.Response) -> AsyncIterator[tuple[dict[str, Any], int]]:
    """Yield the JSON objects in an answer of server-sent events, each with its weight: the values in it, and its bytes
    by 64.

    What else is in there is left out.

    Raises:
        UnreadableAnswerError: a line, a JSON text or the whole is too large.
        httpx.RequestError: the answer broke off.
    """
    async for line in _lines(answer):
        if not line.startswith(b"data:") or (data := line[5:].strip()) == b"[DONE]":
            continue
        values = _check_values(data)
        with suppress(BadRequestError):
            yield (
                await asyncio.to_thread(json_object, data) if len(data) > _LARGE else json_object(data),
                values + len(data) // 64,
            )


async def _lines(answer: httpx.Response) -> AsyncIterator[bytes]:
    """Yield the lines of an answer, without their ends; at its end also one that has none."""
    begun = bytearray()
    lines = 0
    async for piece in _decoded(answer, MOST_STREAM_BYTES):
        begun += piece
        if b"\n" in piece:
            cut = begun.rfind(b"\n") + 1
            whole = bytes(begun[:cut]).splitlines()
            del begun[:cut]
            if lines + len(whole) > MOST_LINES:
                raise UnreadableAnswerError(f"sent more than {MOST_LINES:,} lines")
            for line in whole:
                yield line
                lines += 1
                if lines % _AT_ONCE == 0:
                    await asyncio.sleep(0)
        if len(begun) > MOST_LINE_BYTES:
            raise UnreadableAnswerError(f"sent a line of more than {MOST_LINE_BYTES:,} bytes")
    for line in bytes(begun).splitlines():
        yield line


async def _decoded(answer: httpx.Response, most: int) -> AsyncGenerator[bytes, None]:
    """Yield an answer's bytes, decompressed."""
    encoding = answer.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("identity", "gzip", ""):
        raise UnreadableAnswerError(f"sent an answer compressed in a way that was not asked for: {encoding[:50]!r}")
    packed = Gunzip(most) if encoding == "gzip" else None
    size = 0
    try:
        async with aclosing(answer.aiter_raw()) as pieces:  # type: ignore[type-var]  # it is an async generator
            count = 0
            async for piece in pieces:
                count += 1
                if count % _AT_ONCE == 0:
                    await asyncio.sleep(0)
                if packed is not None:
                    for each in packed.feed(piece):
                        yield each
                        await asyncio.sleep(0)
                    continue
                size += len(piece)
                if size > most:
                    raise TooLargeError(f"it has more than {most} bytes")
                yield piece
        if packed is not None:
            packed.end()
    except (TooLargeError, GunzipError) as error:
        raise UnreadableAnswerError(f"sent an answer that cannot be read: {error}") from None


def _parsed(content: bytes | bytearray) -> dict[str, Any]:
    _check_values(content)
    try:
        return json_object(bytes(content))
    except BadRequestError as error:
        raise UnreadableAnswerError("answered what is no JSON object") from error


def _check_values(text: bytes | bytearray) -> int:
    """Return a bound on the values that a JSON text has.

    Raises:
        UnreadableAnswerError: they are too many.
    """
    values = 1 + text.count(b",") + text.count(b"[") + text.count(b"{")
    if values > MOST_VALUES:
        raise UnreadableAnswerError(f"sent more than {MOST_VALUES:,} values at once")
    return values


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
    name: StringIO = field(default_factory=StringIO)
    arguments: StringIO = field(default_factory=StringIO)

    def body(self) -> dict[str, Any]:
        function = {"name": self.name.getvalue(), "arguments": self.arguments.getvalue()}
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
        message = {
            key: value.getvalue() if isinstance(value, StringIO) else value for key, value in self._fields.items()
        }
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
                text = self._fields.get(key)
                if not isinstance(text, StringIO):
                    begun, text = text, StringIO()
                    text.write(begun if isinstance(begun, str) else "")
                    self._keep(key, text)
                text.write(value)
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
                text.write(piece)


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
