"""Read an upstream's answer within bounds: nothing of it is trusted to end, to be small, or to be what it says.

Answers are asked for as they are and decompressed here where a server sends gzip all the same, so that what is counted
is what is kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, suppress
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
