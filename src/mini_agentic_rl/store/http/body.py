"""The body of a request, bounded before and after decompression."""

from __future__ import annotations

import asyncio
import zlib
from typing import Final

from starlette.requests import Request

_GZIP: Final = 16 + zlib.MAX_WBITS
_SMALL: Final = 64 * 1024


class BodyError(Exception):
    """The body is refused; `status` is the HTTP status to refuse it with."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


async def body_of(request: Request, limit: int) -> bytes:
    """The body, decompressed if it came with gzip.

    Args:
        request: Its body has not been read yet.
        limit: Most bytes, as they were sent and as they are decompressed.

    Raises:
        BodyError: the body is too large, or not compressed as its header says.
    """
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("identity", "gzip", ""):
        raise BodyError(415, f"content encoding {encoding!r} is not taken: send the body as it is, or with gzip")
    declared = request.headers.get("content-length", "")
    if declared.isascii() and declared.isdecimal() and int(declared) > limit:
        raise _too_large(limit)
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > limit:
            raise _too_large(limit)
        parts.append(part)
    body = b"".join(parts)
    if encoding != "gzip" or not body:
        return body
    if size <= _SMALL and limit <= _SMALL:
        return _decompressed(body, limit)
    return await asyncio.to_thread(_decompressed, body, limit)


def _decompressed(body: bytes, limit: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    try:
        while body:
            stream = zlib.decompressobj(wbits=_GZIP)
            part = stream.decompress(body, limit - size + 1)
            size += len(part)
            if size > limit:
                raise _too_large(limit)
            if not stream.eof:
                raise BodyError(400, "the body ends before its gzip stream does")
            parts.append(part)
            body = stream.unused_data
    except zlib.error as error:
        raise BodyError(400, f"the body is not gzip, though its header says so: {error}") from None
    return b"".join(parts)


def _too_large(limit: int) -> BodyError:
    return BodyError(413, f"the body exceeds {limit} bytes: send less at once, or raise max_body_bytes of the server")
