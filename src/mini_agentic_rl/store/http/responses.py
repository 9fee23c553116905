"""Responses that a client may ask for again, and requests that wait for something to happen.

A request that changes something is carried out once per idempotency key: asked again, because the first response was
lost on the way, the server sends the same response. Nothing is claimed or enqueued twice, and no claim is lost.
"""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final

from starlette.responses import Response
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

MOST_RESPONSES: Final = 32_768
MOST_BYTES: Final = 64 * 1024 * 1024


_ERROR_TYPES: Final[dict[type[HttpError], str]] = {
    AuthenticationError: "Unauthorized",
    ForbiddenError: "Forbidden",
    NotServedError: "NotServed",
    OverloadedError: "Overloaded",
    DrainingError: "ServerStopping",
}


@dataclass(frozen=True)
class StoreResponse:
    """A status and a body of JSON, which can be sent any number of times."""

    status: int
    body: bytes


def failure(status: int, detail: str, error_type: str) -> StoreResponse:
    """Return the response to a request that failed."""
    return StoreResponse(status, json.dumps({"detail": detail, "error_type": error_type}).encode())


STOPPING: Final = failure(503, "the store server is stopping", "ServerStopping")


def http_response(response: StoreResponse) -> Response:
    """Return the response as ASGI sends it."""
    headers = {"Retry-After": "1"} if response is STOPPING else None
    return Response(response.body, response.status, headers, "application/json")


def error_response(error: HttpError) -> Response:
    """Return the response that tells of an error, as `failure` does."""
    headers = error.headers
    if isinstance(error, AuthenticationError):
        headers["WWW-Authenticate"] = "Bearer"
    kind = _ERROR_TYPES.get(type(error), "ValueError" if error.status < 500 else "InternalError")
    return Response(failure(error.status, error.message, kind).body, error.status, headers, "application/json")


class RememberedResponses:
    """Keep the latest responses by idempotency key. Used from one event loop.

    Args:
        most_responses: How many are kept; the oldest is forgotten first.
        most_bytes: How many bytes of bodies are kept.
    """

    def __init__(self, most_responses: int = MOST_RESPONSES, most_bytes: int = MOST_BYTES) -> None:
        self._most_responses = most_responses
        self._most_bytes = most_bytes
        self._running: dict[str, asyncio.Task[StoreResponse]] = {}
        self._given: OrderedDict[str, StoreResponse] = OrderedDict()
        self._bytes = 0

    async def once(self, key: str, work: Callable[[], Coroutine[Any, Any, StoreResponse]]) -> StoreResponse:
        """Return the response of `work`, which is carried out unless it was, or is being, under this key.

        It goes on when the caller is cancelled. A response of status 500 or above is not remembered: the work may be
        tried again.
        """
        given = self._given.get(key)
        if given is not None:
            return given
        task = self._running.get(key)
        if task is None:
            task = asyncio.get_running_loop().create_task(work())
            self._running[key] = task
            task.add_done_callback(lambda done: self._keep(key, done))
        return await asyncio.shield(task)

    def _keep(self, key: str, task: asyncio.Task[StoreResponse]) -> None:
        del self._running[key]
        if task.cancelled() or task.exception() is not None or task.result().status >= 500:
            return
        self._given[key] = task.result()
        self._bytes += len(task.result().body)
        while len(self._given) > self._most_responses or self._bytes > self._most_bytes:
            _, oldest = self._given.popitem(last=False)
            self._bytes -= len(oldest.body)


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
