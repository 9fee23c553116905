"""Responses of the store server, and requests that wait for something to happen."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass
from typing import Any, Final

from starlette.responses import Response, StreamingResponse
from starlette.types import Receive

from ...http import (
    AuthenticationError,
    DrainingError,
    ForbiddenError,
    HttpError,
    NotServedError,
    OverloadedError,
    disconnected,
)

_ERROR_TYPES: Final[dict[type[HttpError], str]] = {
    AuthenticationError: "Unauthorized",
    ForbiddenError: "Forbidden",
    NotServedError: "NotServed",
    OverloadedError: "Overloaded",
    DrainingError: "ServerStopping",
}


@dataclass(frozen=True)
class StoreResponse:
    """A status and a body of JSON."""

    status: int
    body: bytes
    rest: AsyncIterator[bytes] | None = None
    """Further parts of the body, where it is long: then it is sent once."""


def failure(status: int, detail: str, error_type: str) -> StoreResponse:
    """Return the response to a request that failed."""
    return StoreResponse(status, json.dumps({"detail": detail, "error_type": error_type}).encode())


STOPPING: Final = failure(503, "the store server is stopping", "ServerStopping")


def http_response(response: StoreResponse) -> Response:
    """Return the response as ASGI sends it."""
    if response.rest is not None:
        return StreamingResponse(joined(response.body, response.rest), response.status, media_type="application/json")
    headers = {"Retry-After": "1"} if response is STOPPING else None
    return Response(response.body, response.status, headers, "application/json")


async def joined(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the first part, then the rest."""
    yield first
    async for part in rest:
        yield part


def error_response(error: HttpError) -> Response:
    """Return the response that tells of an error, as `failure` does."""
    headers = error.headers
    if isinstance(error, AuthenticationError):
        headers["WWW-Authenticate"] = "Bearer"
    kind = _ERROR_TYPES.get(type(error), "ValueError" if error.status < 500 else "InternalError")
    return Response(failure(error.status, error.message, kind).body, error.status, headers, "application/json")


class RunningRequests:
    """Requests under way by idempotency key; the store knows those that are done. Used from one event loop."""

    def __init__(self) -> None:
        self._running: dict[str, asyncio.Task[StoreResponse]] = {}

    async def once(self, key: str, work: Coroutine[Any, Any, StoreResponse]) -> StoreResponse:
        """Return the response of `work`, or of what is being carried out under this key. It goes on when the caller is
        cancelled."""
        task = self._running.get(key)
        if task is None:
            task = self._running[key] = asyncio.get_running_loop().create_task(work)
            task.add_done_callback(lambda done: self._running.pop(key))
        else:
            work.close()
        return await asyncio.shield(task)


class LongPolls:
    """Hold requests that wait. Used from one event loop, ended from any thread."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: set[asyncio.Task[StoreResponse]] = set()
        self._ending = False

    async def hold(self, work: Coroutine[Any, Any, StoreResponse], receive: Receive) -> StoreResponse:
        """Return the response of `work`; `STOPPING` if the client goes away or the server stops first.

        Args:
            work: Cancelled when nobody waits for it any more.
            receive: Of the request, whose body has been read.
        """
        if self._ending:
            work.close()
            return STOPPING
        self._loop = asyncio.get_running_loop()
        waiting = self._loop.create_task(work)
        gone = self._loop.create_task(disconnected(receive))
        self._waiting.add(waiting)
        try:
            await asyncio.wait((waiting, gone), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._waiting.discard(waiting)
            gone.cancel()
            waiting.cancel()
            await asyncio.gather(waiting, gone, return_exceptions=True)
        return STOPPING if waiting.cancelled() else waiting.result()

    def open(self) -> None:
        """Take requests that wait (again)."""
        self._ending = False

    def end(self) -> None:
        """Answer every request that waits, now and from now on."""
        self._ending = True
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._cancel_all)

    def _cancel_all(self) -> None:
        for task in self._waiting:
            task.cancel()
