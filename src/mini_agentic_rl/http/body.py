"""The body of a request: reading within bounds, gzip, and validation by a model.

The error for a bad field names it, for example `tools[0].function.name`.
"""

from __future__ import annotations

import asyncio
import os
import zlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails
from starlette.requests import ClientDisconnect, Request

from .errors import BadRequestError, BodyTooLargeError, HttpError, UnsupportedEncodingError
from .json_text import json_object

T = TypeVar("T")

_UNSPECIFIED: Final = ("", "application/x-www-form-urlencoded")
"""Content types without information; the second is the default of `curl -d`. A form of a web page has it too, but also
an `Origin`."""
_PASSED_OVER: Final = 32 * 1024 * 1024
"""Bytes beyond the limit that are read and discarded, so that the client reads the error response."""
_DIGITS: Final = 19


async def read_body(request: Request, limit: int, *, gzip: bool = False, within_seconds: float | None = None) -> bytes:
    """Return the body.

    Args:
        request: The request, whose body has not been read.
        limit: Most bytes, as sent and as decompressed.
        gzip: Decompress gzip; False refuses it as all other encodings.
        within_seconds: Time limit for the arrival of the body; None: no limit.

    Raises:
        BodyTooLargeError: the body is too large.
        HttpError: the body did not arrive in time (408).
        UnsupportedEncodingError: the body has another encoding.
        BadRequestError: the body is not gzip.
    """
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("identity", "gzip" if gzip else "", ""):
        taken = ("as it is, or with gzip", "gzip") if gzip else ("as it is", "identity")
        raise UnsupportedEncodingError(
            f"Content-Encoding {encoding!r} is not taken: send the body {taken[0]}",
            headers={"Accept-Encoding": taken[1]},  # RFC 9110, section 15.5.16
        )
    try:
        body = await asyncio.wait_for(_arrived(request, limit), within_seconds)
    except asyncio.TimeoutError:
        message = f"the body did not arrive within {within_seconds:g} seconds (max_body_seconds)"
        raise HttpError(message, status=408, headers={"Connection": "close"}) from None
    if not isinstance(body, bytes):
        raise body()
    if encoding != "gzip" or not body:
        return body
    return await off_loop(limit, partial(_decompressed, body, limit))


async def read_json(
    request: Request,
    limit: int,
    read: Callable[[dict[str, Any]], T],
    *,
    within_seconds: float | None = None,
) -> T:
    """Return the result of `read` for the JSON object in the body; larger bodies are parsed in a thread.

    Args:
        request: The request, whose body has not been read.
        limit: Most bytes.
        read: Reads the object; may be called in any thread, so it must not wait for the event loop.
        within_seconds: Time limit for the arrival of the body.

    Raises:
        HttpError: as `read_body`, `json_object` and `read` do.
        UnsupportedEncodingError: the content type is not JSON.
    """
    if not is_json(request.headers) and _media_type(request.headers) not in _UNSPECIFIED:
        raise UnsupportedEncodingError("send the body as Content-Type: application/json")
    body = await read_body(request, limit, within_seconds=within_seconds)
    return await off_loop(len(body), lambda: read(json_object(body, finite=True)))


def is_json(headers: Mapping[str, str]) -> bool:
    """Return True if the content type is JSON, which a web page of another site cannot send without a CORS check."""
    return _media_type(headers) == "application/json"


def _media_type(headers: Mapping[str, str]) -> str:
    return headers.get("content-type", "").partition(";")[0].strip().lower()


async def _arrived(request: Request, limit: int) -> bytes | Callable[[], Exception]:
    """Return the body, or a function that returns the error for its absence.

    A body that is too large is read to its end, unless that is far, because a client that is still sending does not see
    the response. Nothing is raised here: an exception and its task would form a reference cycle that keeps the request
    until the next garbage collection.
    """
    declared = request.headers.get("content-length", "")
    expected = int(declared[:_DIGITS]) if declared.isascii() and declared.isdecimal() else 0
    if expected > limit + _PASSED_OVER:
        return partial(BodyTooLargeError, limit)
    parts: list[bytes] = []
    size = 0
    try:
        async for part in request.stream():
            size += len(part)
            if max(size, expected) <= limit:
                parts.append(part)
            else:
                parts.clear()
                if size > limit + _PASSED_OVER:
                    break
    except ClientDisconnect:
        return ClientDisconnect
    if max(size, expected) > limit:
        return partial(BodyTooLargeError, limit)
    return b"".join(parts)


def _decompressed(body: bytes, limit: int) -> bytes:
    stream = Gunzip(limit)
    try:
        whole = b"".join(stream.feed(body))
        stream.end()
    except TooLargeError:
        raise BodyTooLargeError(limit) from None
    except GunzipError as error:
        raise BadRequestError(f"the body cannot be decompressed, though its header says gzip: {error}") from None
    return whole


class Body(BaseModel):
    """A part of a request. Unknown fields are ignored."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)


BodyT = TypeVar("BodyT", bound=Body)


def checked(model: type[BodyT], value: Mapping[str, Any]) -> BodyT:
    """Return `value` as a `model`.

    Raises:
        BadRequestError: a field has a bad value; `param` is the path to the first such field, for example
            `tools[0].function.name`.
    """
    try:
        return model.model_validate(value)
    except ValidationError as error:
        errors = error.errors(include_url=False, include_context=False, include_input=False)
        paths = [_path(each, value) for each in errors]
        # A union reports an error for each member. Choose the member that was validated furthest, or has this type.
        alternatives = [index for index, path in enumerate(paths) if path[: len(paths[0])] == paths[0]]
        chosen = max(alternatives, key=lambda index: (len(paths[index]), not errors[index]["type"].endswith("_type")))
        param = "".join(paths[chosen]).removeprefix(".")
        message = errors[chosen]["msg"].removeprefix("Value error, ")
        if not param:
            raise BadRequestError(f"the body is not a valid request: {message}") from None
        raise BadRequestError(f"{param}: {message}", param=param) from None


def _path(error: ErrorDetails, value: Any) -> list[str]:
    """Return the path to an error in the body `value`, without the names of union members in its location."""
    path = []
    missing = error["loc"][-1] if error["type"] == "missing" else None
    for step in error["loc"]:
        if isinstance(step, int) and isinstance(value, list):
            path.append(f"[{step}]")
            value = value[step]
        elif isinstance(value, Mapping) and (step in value or step == missing):
            path.append(f".{step}")
            value = value.get(step)
    return path


MOST_STREAMS: Final = 1000
"""Most gzip streams in one body; a program that appends to a file makes several."""

_GZIP: Final = 16 + zlib.MAX_WBITS
_INPUT: Final = 16 * 1024
"""Bytes that are decompressed at once; the rest of them is copied for each stream and piece."""
_PIECE: Final = 64 * 1024


class GunzipError(ValueError):
    """The bytes are not gzip, or end too early."""


class TooLargeError(ValueError):
    """There are more bytes than the limit."""


class Gunzip:
    """Incremental decompression of gzip.

    Args:
        limit: Most decompressed bytes.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._size = 0
        self._streams = 0
        self._stream = zlib.decompressobj(wbits=_GZIP)
        self._fresh = True

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the decompressed next bytes in pieces of at most 64 KiB.

        Raises:
            TooLargeError: the total exceeds the limit.
            GunzipError: it is not gzip, or has more than `MOST_STREAMS` streams.
        """
        for start in range(0, len(data), _INPUT):
            rest, more = data[start : start + _INPUT], False
            while rest or more:
                piece, rest = self._decompressed(rest)
                more = len(piece) == _PIECE and not self._stream.eof
                if piece:
                    yield piece

    def end(self) -> None:
        """Check that nothing is missing.

        Raises:
            GunzipError: the bytes ended within a stream.
        """
        if not self._fresh and not self._stream.eof:
            raise GunzipError("it ends before its gzip stream does")

    def _decompressed(self, data: bytes) -> tuple[bytes, bytes]:
        """Return a piece, and the rest of the input."""
        if self._stream.eof:
            self._stream, self._fresh = zlib.decompressobj(wbits=_GZIP), True
        if self._fresh:
            self._streams, self._fresh = self._streams + 1, False
            if self._streams > MOST_STREAMS:
                raise GunzipError(f"it holds more than {MOST_STREAMS} gzip streams, one after the other")
        try:
            piece = self._stream.decompress(data, _PIECE)
        except zlib.error as error:
            raise GunzipError(f"it is not gzip: {error}") from None
        self._size += len(piece)
        if self._size > self._limit:
            raise TooLargeError(f"it decompresses to more than {self._limit} bytes")
        return piece, self._stream.unused_data if self._stream.eof else self._stream.unconsumed_tail


SMALL: Final = 16 * 1024
"""Bytes, or characters, that are handled on the event loop."""
LARGE: Final = 1024 * 1024
"""Bytes, or characters, above which work is done one at a time."""


def _new_threads() -> None:
    """Make the threads for larger requests; a forked process has none of those of its parent."""
    global _ordinary, _large
    _ordinary, _large = ThreadPoolExecutor(2, "request"), ThreadPoolExecutor(1, "large request")


_ordinary: ThreadPoolExecutor
_large: ThreadPoolExecutor
_new_threads()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_new_threads)


async def off_loop(size: int, work: Callable[[], T]) -> T:
    """Return the result of `work`, which runs here if its `size` in bytes is small, else in a thread.

    When the caller is cancelled, running work is finished, and waiting work is dropped.
    """
    if size <= SMALL:
        return work()
    pool = _large if size > LARGE else _ordinary
    return await asyncio.get_running_loop().run_in_executor(pool, partial(work))
