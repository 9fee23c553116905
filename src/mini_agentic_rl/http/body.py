"""The body of a request: bounded bytes, gzip where the server takes it, and the model that they are read into.

A bad field is one error that names it, as in `tools[0].function.name`.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Mapping
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails
from starlette.requests import Request

from .errors import BadRequestError, BodyTooLargeError, UnsupportedEncodingError

_GZIP: Final = 16 + zlib.MAX_WBITS
_SMALL: Final = 64 * 1024


async def read_body(request: Request, limit: int, *, gzip: bool = False) -> bytes:
    """Return the body.

    Args:
        request: its body has not been read yet.
        limit: most bytes, as they were sent and as they are decompressed.
        gzip: decompress a body that came with gzip, and refuse other encodings.

    Raises:
        BodyTooLargeError: the body is too large.
        UnsupportedEncodingError: it has another encoding.
        BadRequestError: it is not compressed as its header says.
    """
    encoding = request.headers.get("content-encoding", "identity").strip().lower() if gzip else "identity"
    if encoding not in ("identity", "gzip", ""):
        raise UnsupportedEncodingError(
            f"content encoding {encoding!r} is not taken: send the body as it is, or with gzip"
        )
    declared = request.headers.get("content-length", "")
    if declared.isascii() and declared.isdecimal() and int(declared) > limit:
        raise BodyTooLargeError(limit)
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > limit:
            raise BodyTooLargeError(limit)
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
        while body:  # a gzip file may hold several streams, one after the other
            stream = zlib.decompressobj(wbits=_GZIP)
            part = stream.decompress(body, limit - size + 1)
            size += len(part)
            if size > limit:
                raise BodyTooLargeError(limit)
            if not stream.eof:
                raise BadRequestError("the body ends before its gzip stream does")
            parts.append(part)
            body = stream.unused_data
    except zlib.error as error:
        raise BadRequestError(f"the body is not gzip, though its header says so: {error}") from None
    return b"".join(parts)


class Body(BaseModel):
    """A part of a request. Fields that it does not name are ignored."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)


BodyT = TypeVar("BodyT", bound=Body)


def checked(model: type[BodyT], value: Mapping[str, Any]) -> BodyT:
    """Return `value` as a `model`.

    Raises:
        BadRequestError: a field has a bad value; `param` is the path to the first such field, as in
            `tools[0].function.name`.
    """
    try:
        return model.model_validate(value)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False, include_input=False)
        paths = [_path(each, value) for each in found]
        # A union tells what is wrong by each of its members. The one that was meant got furthest, or is of this type.
        alternatives = [index for index, path in enumerate(paths) if path[: len(paths[0])] == paths[0]]
        meant = max(alternatives, key=lambda index: (len(paths[index]), not found[index]["type"].endswith("_type")))
        param = "".join(paths[meant]).removeprefix(".")
        message = found[meant]["msg"].removeprefix("Value error, ")
        if not param:
            raise BadRequestError(f"the body is not a valid request: {message}") from None
        raise BadRequestError(f"{param}: {message}", param=param) from None


def _path(error: ErrorDetails, value: Any) -> list[str]:
    """Return the place of an error in the body `value`. Its location also names members of unions, which are not in
    the body."""
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
