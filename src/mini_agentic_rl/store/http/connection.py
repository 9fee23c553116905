"""Requests to one store server, from any thread and event loop, through one pool of connections.

A request that fails on its way, or that the server refuses for the moment, is sent again, with growing pauses and only
once the server says that it is well. What changes something carries an idempotency key, so it is carried out once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import secrets
import threading
import time
from collections.abc import Coroutine
from itertools import count
from typing import Any, Final, TypeVar

import httpx

from ..errors import LightningStoreError
from ..threading import LoopThread
from . import wire

T = TypeVar("T")

logger = logging.getLogger(__name__)

_TRY_AGAIN: Final = (429, 502, 503, 504)
_TOO_MANY: Final = 429
_FIRST_PAUSE_SECONDS: Final = 0.05
_LONGEST_PAUSE_SECONDS: Final = 2.0
_LONGEST_RETRY_AFTER: Final = 3600.0
_PATIENCE_SECONDS: Final = 0.5
_LONG_SECONDS: Final = 5.0
"""Once the pauses are longer than the one, and it may last longer than the other, one is told what is waited for."""
_IDLE_SECONDS: Final = 30.0
_IDLE_CONNECTIONS: Final = 64
_AT_ONCE: Final = 48
"""Requests that are on their way; the others wait for their turn. The pool of connections looks at all that it has for
each request that comes or goes, and with a thousand of them that took longer than the requests' time limits."""
_CLOSED: Final = "the client of the store is closed: make a new one"

_of_other_processes: list[object] = []
"""Connections that were open when the process was forked: they belong to the parent, and must not be closed here."""


class Connection:
    """Opened by the first request; after a fork, opened anew by the first request in that process.

    Args:
        address: http://host:port of the server.
        api_key: Bearer token to send.
        retry_seconds: For how long a request is tried again.
        request_timeout: Most seconds for an answer that does not wait for anything.
        connection_timeout: Most seconds to connect.
    """

    def __init__(
        self,
        address: str,
        api_key: str | None,
        *,
        retry_seconds: float,
        request_timeout: float,
        connection_timeout: float,
    ) -> None:
        self._address = address
        self._headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        self._retry_seconds = retry_seconds
        self._request_timeout = request_timeout
        self._connection_timeout = connection_timeout
        self._closed = False
        self._away = False
        self._answered = 0.0
        self._reset()

    def _reset(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._open: tuple[LoopThread, httpx.AsyncHTTPTransport] | None = None
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._asking: asyncio.Task[bool] | None = None
        """Asks whether the server is well, for all requests that want to know."""
        self._prefix = secrets.token_hex(8)
        self._numbers = count()

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine, which may send, in the thread of the connection."""
        try:
            thread, _ = self._opened()
        except BaseException:
            work.close()
            raise
        return await thread.call(work)

    async def send(
        self, method: str, path: str, body: bytes = b"", *, changes: bool = False, waiting: float = 0.0
    ) -> tuple[int, bytes]:
        """Send a request; must run in the thread of the connection.

        Args:
            method: GET or POST.
            path: With its query string.
            body: JSON.
            changes: Doing it twice is not the same as doing it once.
            waiting: Seconds that the server may take on top.

        Returns:
            The status and the body of the answer.

        Raises:
            LightningStoreError: the server cannot be reached, or refused for too long.
            ValueError: an id makes the path too long for a URL.
        """
        headers = dict(self._headers)
        if body:
            headers["Content-Type"] = "application/json"
        if changes:
            headers[wire.KEY_HEADER] = f"{self._prefix}{next(self._numbers)}"
        request = self._request(method, path, headers, body, self._request_timeout + waiting)
        begin = time.monotonic()
        end = begin + self._retry_seconds
        pause = _FIRST_PAUSE_SECONDS
        while True:
            try:
                # What waits at the server takes no turn: it would keep others from what it waits for.
                async with contextlib.nullcontext() if waiting else self._turns:
                    status, answer, after = await self._exchange(request)
                if status not in _TRY_AGAIN or b'"LightningStoreError"' in answer:
                    self._is_there()
                    return status, answer
                busy = status == _TOO_MANY
                if busy:  # it is well, and says when it may be asked again
                    pause = max(pause, after)
                problem = f"HTTP status {status} {answer[:200].decode('utf-8', 'replace')}"
            except (httpx.UnsupportedProtocol, httpx.LocalProtocolError) as error:
                raise LightningStoreError(f"cannot ask the store server at {self._address}: {error}") from None
            except httpx.TransportError as error:
                busy, problem = False, f"{type(error).__name__} {error}".strip()
            healthy = False
            while not healthy:
                if time.monotonic() + pause > end:
                    raise LightningStoreError(self._given_up(problem, busy=busy))
                await asyncio.sleep(pause * random.uniform(0.5, 1.0))
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
                healthy = await self._is_healthy()
                lasting = pause > _PATIENCE_SECONDS and end - time.monotonic() > _LONG_SECONDS
                if not healthy and lasting and self._answered < begin:
                    self._is_away(problem)

    async def close(self) -> None:
        """Close the connections and end the thread; any request after it is an error."""
        self._closed = True
        if self._process != os.getpid() or self._open is None:
            return
        (thread, transport), self._open = self._open, None
        await thread.call(transport.aclose())
        await asyncio.to_thread(thread.stop)

    def _opened(self) -> tuple[LoopThread, httpx.AsyncHTTPTransport]:
        if self._closed:
            raise LightningStoreError(_CLOSED)
        if self._process != os.getpid():
            _of_other_processes.append(self._open)
            self._reset()
        if self._open is None:
            with self._lock:
                if self._open is None:
                    limits = httpx.Limits(
                        max_connections=None,
                        max_keepalive_connections=_IDLE_CONNECTIONS,
                        keepalive_expiry=_IDLE_SECONDS,
                    )
                    secure = self._address.startswith("https")  # loading the certificates takes a while
                    self._open = LoopThread("store-client"), httpx.AsyncHTTPTransport(verify=secure, limits=limits)
        return self._open

    def _request(self, method: str, path: str, headers: dict[str, str], body: bytes, seconds: float) -> httpx.Request:
        timeout = {"connect": self._connection_timeout, "read": seconds, "write": seconds, "pool": seconds}
        try:
            return httpx.Request(
                method, self._address + path, headers=headers, content=body, extensions={"timeout": timeout}
            )
        except httpx.InvalidURL as error:
            raise ValueError(f"no store server can be asked for {path[:60]}…: {error}") from None

    async def _exchange(self, request: httpx.Request) -> tuple[int, bytes, float]:
        """Return the status and the body of the answer, and after how many seconds it wants to be asked again."""
        _, transport = self._opened()
        response = await transport.handle_async_request(request)
        try:
            return response.status_code, await response.aread(), _seconds(response.headers.get("retry-after", ""))
        finally:
            await response.aclose()

    def _given_up(self, problem: str, *, busy: bool) -> str:
        server = f"the store server at {self._address}"
        if busy:
            return f"{server} takes too few requests for its clients, for {self._retry_seconds:g} s now ({problem})"
        return (
            f"{server} did not answer for {self._retry_seconds:g} s "
            f"({problem}): is it running (agl store), and are AGL_SERVER_HOST and AGL_SERVER_PORT right?"
        )

    def _is_away(self, problem: str) -> None:
        """Say so, once for all requests that find it out."""
        if not self._away:
            self._away = True
            seconds = self._retry_seconds
            logger.warning(
                "the store server at %s does not answer (%s): trying for %g s", self._address, problem, seconds
            )

    def _is_there(self) -> None:
        self._answered = time.monotonic()
        if self._away:
            self._away = False
            logger.warning("the store server at %s answers again", self._address)

    async def _is_healthy(self) -> bool:
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask_health())
        return await asyncio.shield(self._asking)

    async def _ask_health(self) -> bool:
        try:
            status, _, _ = await self._exchange(self._request("GET", wire.HEALTH, self._headers, b"", 5.0))
        except httpx.TransportError:
            return False
        return status == 200


def _seconds(text: str) -> float:
    """Return the seconds of a `Retry-After`; 0 where it gives none, or a date."""
    try:
        seconds = float(text)
    except ValueError:
        return 0.0
    return seconds if 0 <= seconds < _LONGEST_RETRY_AFTER else 0.0
