"""Read the bytes of an upstream's answer within bounds: it may be endless, huge or malformed.

Answers are requested uncompressed. If a server sends gzip anyway, they are decompressed here, so that the bound holds
for the decompressed bytes. `ChatReader` (`dialects/reader.py`) reads the chat completion in them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, suppress
from typing import Any, Final

import httpx

from ...http import BadRequestError, Gunzip, GunzipError, TooLargeError, json_object

MAX_BYTES: Final = 64 * 1024 * 1024
"""Bytes of a whole answer."""
MAX_STREAM_BYTES: Final = 256 * 1024 * 1024
"""Bytes of a streamed answer: about 100,000 tokens with 20 alternatives each."""
MAX_LINES: Final = 1_000_000
"""Lines of a streamed answer; each token takes two or three."""
MAX_LINE_BYTES: Final = 16 * 1024 * 1024
MAX_VALUES: Final = 1_000_000
"""Values in one JSON text: the ids of a prompt and an answer, each with a few alternatives."""
ACCEPTED: Final = "gzip, identity"
"""The accepted content encodings."""

_LARGE: Final = 64 * 1024
_TURN: Final = 50
"""Lines or chunks after which other tasks run: a received buffer may hold many of one byte each."""


class UnreadableAnswerError(ValueError):
    """The answer exceeds a bound or is malformed; the message continues a sentence that starts with the server."""


async def read_whole(answer: httpx.Response) -> dict[str, Any]:
    """Return the JSON object in an answer.

    Raises:
        UnreadableAnswerError: it is not a JSON object, or too large.
        httpx.RequestError: the answer broke off.
    """
    content = bytearray()
    async for piece in _decoded(answer, MAX_BYTES):
        content += piece
    return await asyncio.to_thread(_parsed, content) if len(content) > _LARGE else _parsed(content)


async def read_beginning(answer: httpx.Response, most: int) -> bytes:
    """Return the first `most` bytes of an answer, fewer if it breaks off."""
    content = bytearray()
    with suppress(httpx.RequestError, UnreadableAnswerError):
        async with aclosing(_decoded(answer, most)) as pieces:
            async for piece in pieces:
                content += piece
    return bytes(content)


async def read_events(answer: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    """Yield the JSON objects in an answer of server-sent events; everything else is ignored.

    Raises:
        UnreadableAnswerError: a line, a JSON text or the whole is too large.
        httpx.RequestError: the answer broke off.
    """
    async for line in _lines(answer):
        if not line.startswith(b"data:") or (data := line[5:].strip()) == b"[DONE]":
            continue
        _check_values(data)
        with suppress(BadRequestError):
            yield await asyncio.to_thread(json_object, data) if len(data) > _LARGE else json_object(data)


async def _lines(answer: httpx.Response) -> AsyncIterator[bytes]:
    """Yield the lines of an answer without line ends; the last may lack one."""
    begun = bytearray()
    lines = 0
    async for piece in _decoded(answer, MAX_STREAM_BYTES):
        begun += piece
        if b"\n" in piece:
            cut = begun.rfind(b"\n") + 1
            whole = bytes(begun[:cut]).splitlines()
            del begun[:cut]
            if lines + len(whole) > MAX_LINES:
                raise UnreadableAnswerError(f"sent more than {MAX_LINES:,} lines")
            for line in whole:
                yield line
                lines += 1
                if lines % _TURN == 0:
                    await asyncio.sleep(0)
        if len(begun) > MAX_LINE_BYTES:
            raise UnreadableAnswerError(f"sent a line of more than {MAX_LINE_BYTES:,} bytes")
    for line in bytes(begun).splitlines():
        yield line


async def _decoded(answer: httpx.Response, most: int) -> AsyncGenerator[bytes, None]:
    """Yield the decompressed bytes of an answer."""
    encoding = answer.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("identity", "gzip", ""):
        raise UnreadableAnswerError(f"sent an answer with a content encoding that was not requested: {encoding[:50]!r}")
    packed = Gunzip(most) if encoding == "gzip" else None
    size = 0
    try:
        async with aclosing(answer.aiter_raw()) as pieces:  # type: ignore[type-var]  # it is an async generator
            count = 0
            async for piece in pieces:
                count += 1
                if count % _TURN == 0:
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
        raise UnreadableAnswerError("answered something that is not a JSON object") from error


def _check_values(text: bytes | bytearray) -> None:
    """Raise UnreadableAnswerError if a JSON text may have too many values."""
    if 1 + text.count(b",") + text.count(b"[") + text.count(b"{") > MAX_VALUES:
        raise UnreadableAnswerError(f"sent more than {MAX_VALUES:,} values at once")
