"""Admission of requests: API keys, rate limit, concurrency limit, pause and drain.

Requests enter and leave on the server's event loop. `pause`, `resume`, `drain` and `reopen` may be called from any
thread.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from pydantic import Field
from pydantic.config import JsonDict
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from ..config import Settings
from ..key_header import UNSENDABLE, is_sendable
from .errors import AuthenticationError, DrainingError, ForbiddenError, HttpError, OverloadedError, ServerStartError

_REQUESTS: JsonDict = {"panel": "Limits of requests"}
_PAUSED_RETRY_SECONDS = 2.0
_BUSY_RETRY_SECONDS = 1.0


class RequestLimits(Settings):
    """Bounds on requests. Each key has its own bounds; without keys all clients share one set."""

    max_body_bytes: int = Field(default=16 * 2**20, ge=1, json_schema_extra=_REQUESTS)
    """Largest request body, in bytes."""
    max_body_seconds: float = Field(default=60.0, gt=0, json_schema_extra=_REQUESTS)
    """Time limit for the arrival of a request's body, in seconds."""
    max_awaited_bodies: int = Field(default=1024, ge=1, json_schema_extra=_REQUESTS)
    """Most requests with an incomplete body at the same time, over all keys; beyond it the connection that has been
    silent for longest is closed."""
    max_requests_per_minute: int | None = Field(default=None, ge=1, json_schema_extra=_REQUESTS)
    """Most requests per minute for each API key; None: no limit."""
    max_concurrent_requests: int | None = Field(default=None, ge=1, json_schema_extra=_REQUESTS)
    """Most concurrent requests for each API key; None: no limit."""


class RequestRate:
    """Rate limit by a token bucket for each key. Used from one event loop.

    Args:
        per_minute: Requests of a key per minute; a full bucket allows them all at once.
        clock: Returns seconds that never go back.
    """

    def __init__(self, per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._size = float(per_minute)
        self._per_second = per_minute / 60.0
        self._clock = clock
        self._buckets: dict[str, tuple[float, float]] = {}
        """For each key: the tokens left in its bucket, and at which time."""

    def take(self, key: str) -> float:
        """Take a token of a key; return 0 if there is one, else the seconds until the next."""
        now = self._clock()
        left, since = self._buckets.get(key, (self._size, now))
        left = min(self._size, left + (now - since) * self._per_second)
        passes = left >= 1.0
        self._buckets[key] = (left - 1.0 if passes else left, now)
        return 0.0 if passes else (1.0 - left) / self._per_second


class Admission:
    """Admit requests within the limits.

    Args:
        limits: The bounds.
        keys: Accepted API keys, or their `ApiKeys`; none admits everybody.
        refuse_when_paused: Refuse requests during a pause, instead of holding them until its end.
    """

    def __init__(
        self, limits: RequestLimits, keys: Sequence[str] | ApiKeys = (), *, refuse_when_paused: bool = False
    ) -> None:
        self.limits = limits
        self.keys = keys if isinstance(keys, ApiKeys) else ApiKeys(keys)
        self._refuse_when_paused = refuse_when_paused
        self._rate = None if limits.max_requests_per_minute is None else RequestRate(limits.max_requests_per_minute)
        self._by_key: Counter[str] = Counter()
        self._lock = threading.Lock()
        self.paused = False
        """True while requests are held."""
        self.draining = False
        """True while no requests are admitted, from `drain` to `reopen`."""
        self._waiting: set[asyncio.Future[None]] = set()
        self._empty = threading.Event()
        """Set when the last running request ends."""
        self.active = 0
        """Number of admitted requests, including those that wait for the end of a pause."""

    @property
    def waiting(self) -> int:
        """Number of requests that wait for the end of a pause."""
        return len(self._waiting)

    @contextmanager
    def admitted(self, headers: Mapping[str, str]) -> Iterator[str]:
        """Admit a request for the duration of the block; yield its API key.

        Raises:
            AuthenticationError: it carries no accepted key.
            DrainingError: the server is about to stop.
            OverloadedError: its key exceeds the rate limit or the concurrency limit.
        """
        key = self.keys.check(headers)
        if self.draining:
            raise DrainingError
        bound = self.limits.max_concurrent_requests
        if bound is not None and self._by_key[key] >= bound:
            raise OverloadedError(
                f"{bound} requests of this API key are being answered already (max_concurrent_requests)",
                retry_after=_BUSY_RETRY_SECONDS,
            )
        pause = 0.0 if self._rate is None else self._rate.take(key)
        if pause > 0:
            raise OverloadedError(
                f"this API key has made its {self.limits.max_requests_per_minute} requests of the minute "
                "(max_requests_per_minute)",
                retry_after=max(0.1, round(pause, 1)),
            )
        self.active += 1
        self._by_key[key] += 1
        try:
            yield key
        finally:
            self.active -= 1
            self._by_key[key] -= 1
            if not self._by_key[key]:
                del self._by_key[key]
            if not self.active:
                self._empty.set()

    @contextmanager
    def resting(self, key: str) -> Iterator[None]:
        """Do not count an admitted request of this API key as concurrent for the duration of the block, while it waits
        for an event."""
        self._by_key[key] -= 1
        try:
            yield
        finally:
            self._by_key[key] += 1

    async def opened(self) -> None:
        """Return once the server is not paused.

        Raises:
            OverloadedError: it is, and requests are refused meanwhile.
            DrainingError: it stops instead.
        """
        while self.paused:
            if self._refuse_when_paused:
                raise OverloadedError("the model is being updated; try again", retry_after=_PAUSED_RETRY_SECONDS)
            turn = asyncio.get_running_loop().create_future()
            with self._lock:
                if not self.paused or self.draining:
                    break
                self._waiting.add(turn)
            try:
                await turn
            finally:
                self._waiting.discard(turn)
        if self.draining:
            raise DrainingError

    def pause(self) -> None:
        """Hold new requests; running ones continue."""
        with self._lock:
            self.paused = True

    def resume(self) -> None:
        """End a pause."""
        with self._lock:
            self.paused = False
            self._wake()

    def drain(self, timeout: float) -> None:
        """Admit no more requests, and wait at most `timeout` seconds for the running ones."""
        with self._lock:
            self.draining = True
            self._empty.clear()
            self._wake()
        if self.active:
            self._empty.wait(timeout)

    def reopen(self) -> None:
        """Admit requests again after `drain`."""
        with self._lock:
            self.draining = False

    def _wake(self) -> None:
        for turn in list(self._waiting):
            loop = turn.get_loop()
            if not loop.is_closed():
                loop.call_soon_threadsafe(_end, turn)


def _end(turn: asyncio.Future[None]) -> None:
    if not turn.done():
        turn.set_result(None)


ANYBODY = ""
"""The key of a client if the server has no keys."""


def checked_keys(keys: Sequence[str]) -> tuple[str, ...]:
    """Return the API keys of a server without duplicates.

    Raises:
        ServerStartError: a key is empty, as the key of a request without one, or no header can contain it.
    """
    if not all(key.strip() for key in keys):
        raise ServerStartError(
            "an API key is empty, as one from an unset variable is: give one, or leave the setting out to ask for none",
            setting="api_key",
        )
    if not all(map(is_sendable, keys)):
        raise ServerStartError(UNSENDABLE, setting="api_key")
    return tuple(dict.fromkeys(keys))


class ApiKeys:
    """The accepted API keys.

    Args:
        keys: The keys; none admits everybody.
        bearer_only: Accept `Authorization: Bearer KEY`, but not `x-api-key`.
        hint: How to send a key, for the message of a refusal.

    Raises:
        ServerStartError: a key is empty, or no header can contain it.
    """

    def __init__(
        self,
        keys: Sequence[str],
        *,
        bearer_only: bool = False,
        hint: str = "'Authorization: Bearer KEY' or 'x-api-key: KEY'",
    ) -> None:
        self._keys = checked_keys(keys)
        self._bearer_only = bearer_only
        self._hint = hint

    @property
    def first(self) -> str | None:
        """A key for agents of this process; None if there are no keys."""
        return self._keys[0] if self._keys else None

    def check(self, headers: Mapping[str, str]) -> str:
        """Return the key of a request; `ANYBODY` if there are no keys.

        Raises:
            AuthenticationError: it carries no accepted key.
        """
        if not self._keys:
            return ANYBODY
        authorization = headers.get("authorization", "")
        scheme, _, token = authorization.partition(" ")
        bearer = scheme.lower() == "bearer"  # RFC 9110: in any case
        if self._bearer_only:
            sent = token.lstrip(" ") if bearer else ""
        else:
            sent = (token.lstrip(" ") if bearer else authorization) or headers.get("x-api-key", "")
        given = sent.encode("latin-1")  # ASGI servers decode headers so
        # Compare with all keys, each in constant time, so that the time says nothing about a key.
        matching = [key for key in self._keys if hmac.compare_digest(given, key.encode())]
        if not matching:
            raise AuthenticationError(f"wrong or missing API key: send it as {self._hint}", code="invalid_api_key")
        return matching[0]


def is_loopback(host: str) -> bool:
    """Return True if only this computer can reach the address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def refuse_open_address(host: str, keys: object, setting: str = "`api_key`") -> None:
    """Raise a `ServerStartError` if a server without keys would let other computers in; `setting` takes a key."""
    if not keys and not is_loopback(host):
        raise ServerStartError(
            f"listening on {host} lets other computers in: set an API key ({setting}), or listen on `host=127.0.0.1`",
            setting="host",
        )


@dataclass(frozen=True, eq=False)
class AccessCheck:
    """Middleware that refuses requests without a key, and, for a server without keys, requests of web pages."""

    app: ASGIApp
    keys: ApiKeys
    respond: Callable[[HttpError], Response]
    """Returns the response for a refusal."""
    open_paths: Collection[str] | None = None
    """Paths that need no key; None leaves the check to the endpoints."""
    origins: Collection[str] = ()
    """Web pages that may send requests; `*` means every page."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            try:
                if self.open_paths is not None and scope["path"] not in self.open_paths:
                    self.keys.check(headers)
                invited = "*" in self.origins or headers.get("origin") in self.origins
                if self.keys.first is None and not invited and is_from_web_page(headers):
                    raise ForbiddenError(_NO_PAGES)
            except HttpError as error:
                await self.respond(error)(scope, receive, send)
                return
        await self.app(scope, receive, send)


_NO_PAGES: Final = "without an API key, only requests to localhost or an IP address and from no web page are taken"
_OWN_SITE: Final = ("none", "same-origin")
"""`Sec-Fetch-Site` of requests by the user of a browser, or by a page of this server."""


def is_from_web_page(headers: Mapping[str, str]) -> bool:
    """Return True if a web page of another site may have made the browser send this request.

    Any page can make a browser send requests to the loopback. Such a request has another site's `Origin` (but not a
    GET), or another `Sec-Fetch-Site`, or a host name that its owner may have pointed here (DNS rebinding).
    """
    host, origin = headers.get("host", ""), headers.get("origin")
    if origin is not None and origin.partition("://")[2] != host:
        return True
    if headers.get("sec-fetch-site", "none") not in _OWN_SITE:
        return True
    try:
        name = urlsplit(f"//{host}").hostname or "localhost"
        return name != "localhost" and not ipaddress.ip_address(name)
    except ValueError:  # neither localhost nor an address
        return True
