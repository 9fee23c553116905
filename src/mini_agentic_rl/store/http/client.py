"""The client of a store server, and its connection.

A request that fails on its way, or that the server refuses for the moment, is sent again with growing pauses, once the
server is healthy. A request that changes something carries an idempotency key, so that it is carried out once.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import random
import secrets
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from itertools import count
from typing import Any, Final, TypeVar
from urllib.parse import urlencode, urlsplit

import httpx

from ...config import LightningEnvVar, resolve_str_env_var
from ...errors import UserError
from ...key_header import bearer_header
from ...redaction import shown_address
from ...types import AttemptedRollout, Rollout, Span
from ..base import STORE_METHODS, LightningStoreCapabilities, LightningStoreError
from ..threading import ForwardingStore, LoopThread, forward_methods
from . import routes
from .routes import HOLD_SECONDS, Route

T = TypeVar("T")

logger = logging.getLogger(__name__)

_TRY_AGAIN: Final = (429, 502, 503, 504)
_TOO_MANY: Final = 429
_FIRST_PAUSE_SECONDS: Final = 0.05
_LONGEST_PAUSE_SECONDS: Final = 2.0
_LONGEST_RETRY_AFTER: Final = 3600.0
_PATIENCE_SECONDS: Final = 0.5
_LONG_SECONDS: Final = 5.0
"""A warning is logged when pauses are longer than `_PATIENCE_SECONDS` and retries go on for longer than this."""
_IDLE_SECONDS: Final = 30.0
_IDLE_CONNECTIONS: Final = 64
_AT_ONCE: Final = 48
"""Concurrent requests; the others wait. httpx's pool scans all connections for each request, so a thousand concurrent
requests would exceed their time limits."""
_CLOSED: Final = "the client of the store is closed: make a new one"

_of_other_processes: list[object] = []
"""Connections of the parent process after a fork, which must not be closed here."""


class Connection:
    """Connection to a server, opened by the first request, and again by the first request after a fork.

    Args:
        address: http://host:port of the server.
        api_key: Bearer token to send.
        retry_seconds: Time for which a request is retried.
        request_timeout: Most seconds for the response to a request that does not wait.
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
        self._headers = bearer_header(api_key)
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
        self._health_check: asyncio.Task[bool] | None = None
        """Shared by all requests that wait for it."""
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
            path: Path with query string.
            body: JSON.
            changes: The request needs an idempotency key.
            waiting: Seconds that the server may wait before it responds.

        Returns:
            The status and the body of the response.

        Raises:
            LightningStoreError: the server cannot be reached, or refused for too long.
            ValueError: an id makes the path too long for a URL.
        """
        headers = dict(self._headers)
        if body:
            headers[b"Content-Type"] = b"application/json"
        if changes:
            headers[routes.KEY_HEADER.encode()] = f"{self._prefix}{next(self._numbers)}".encode()
        request = self._request(method, path, headers, body, self._request_timeout + waiting)
        begin = time.monotonic()
        end = begin + self._retry_seconds
        pause = _FIRST_PAUSE_SECONDS
        while True:
            try:
                # A waiting request takes no turn: it would block the requests that end its wait.
                async with contextlib.nullcontext() if waiting else self._turns:
                    status, answer, after = await self._exchange(request)
                if status not in _TRY_AGAIN or b'"LightningStoreError"' in answer:
                    self._is_there()
                    return status, answer
                busy = status == _TOO_MANY
                if busy:  # the server says when to retry
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
                if self._health_check is None or self._health_check.done():
                    self._health_check = asyncio.create_task(self._check_health())
                healthy = await asyncio.shield(self._health_check)
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

    def _request(
        self, method: str, path: str, headers: Mapping[bytes, bytes], body: bytes, seconds: float
    ) -> httpx.Request:
        timeout = {"connect": self._connection_timeout, "read": seconds, "write": seconds, "pool": seconds}
        try:
            return httpx.Request(
                method, self._address + path, headers=headers, content=body, extensions={"timeout": timeout}
            )
        except httpx.InvalidURL as error:
            raise ValueError(f"no store server can be asked for {path[:60]}…: {error}") from None

    async def _exchange(self, request: httpx.Request) -> tuple[int, bytes, float]:
        """Return the status and the body of the response, and its `Retry-After` in seconds."""
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
        """Log that the server does not answer, once for all requests."""
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

    async def _check_health(self) -> bool:
        try:
            status, _, _ = await self._exchange(self._request("GET", routes.HEALTH, self._headers, b"", 5.0))
        except httpx.TransportError:
            return False
        return status == 200


def _seconds(text: str) -> float:
    """Return the seconds of a `Retry-After`; 0 if it is missing or a date."""
    try:
        seconds = float(text)
    except ValueError:
        return 0.0
    return seconds if 0 <= seconds < _LONGEST_RETRY_AFTER else 0.0


_CLAIM: Final = routes.route_of("dequeue_many_rollouts")
_WORK: Final = routes.route_of("wait_for_work")
_HEARTBEATS: Final = routes.route_of("update_many_workers")
_ENDS: Final = routes.route_of("wait_for_rollouts")
_ONE_SPAN: Final = routes.route_of("add_span")
_SPANS: Final = routes.route_of("add_many_spans")
_NUMBER: Final = routes.route_of("get_next_span_sequence_id")
_NUMBERS: Final = routes.route_of("get_many_span_sequence_ids")
_GIVING_BACK_SECONDS: Final = 5.0


class LightningStoreClient(ForwardingStore):
    """The store of a `LightningStoreServer`, or of an agent-lightning 0.3 store server.

    It may be used from any thread and event loop, pickled to another process, and used after a fork. A cancelled call
    may have been carried out; rollouts that it has claimed are queued again.

    Args:
        server_address: http://host:port of the server, with or without `/v1/agl`.
        api_key: Bearer token to send; by default the environment variable AGL_API_KEY.
        retry_seconds: Time for which a call is retried while the server cannot be reached.
        request_timeout: Most seconds for the response to a request that does not wait.
        connection_timeout: Most seconds to connect.
        retry_delays, health_retry_delays: Arguments of agent-lightning; their sum replaces `retry_seconds`.

    Raises:
        UserError: `server_address` is no address, or no header can contain the key.
        LightningStoreError: any call: the server cannot be reached, refuses, or its store fails.
    """

    def __init__(
        self,
        server_address: str,
        *,
        api_key: str | None = None,
        retry_seconds: float = 60.0,
        request_timeout: float = 60.0,
        connection_timeout: float = 5.0,
        retry_delays: Sequence[float] | None = None,
        health_retry_delays: Sequence[float] | None = None,
    ) -> None:
        if retry_delays is not None or health_retry_delays is not None:
            retry_seconds = float(sum((*(retry_delays or ()), *(health_retry_delays or ()))))
        self.server_address_root = _checked(server_address)
        """http://host:port of the server."""
        self.server_address = f"{self.server_address_root}{routes.PREFIX}"
        """Prefix of the URLs of the store's routes."""
        self._api_key = resolve_str_env_var(LightningEnvVar.AGL_API_KEY, api_key) or None
        self._settings: dict[str, Any] = {
            "api_key": self._api_key,
            "retry_seconds": retry_seconds,
            "request_timeout": request_timeout,
            "connection_timeout": connection_timeout,
        }
        self._connection = Connection(self.server_address_root, **self._settings)
        self._not_served: set[Route] = set()
        self._giving_back: set[asyncio.Task[None]] = set()
        self._work_request: asyncio.Task[Any] | None = None
        """Request that waits for work."""

    def __reduce__(self) -> tuple[Callable[..., LightningStoreClient], tuple[Any, ...]]:
        return partial(LightningStoreClient, **self._settings), (self.server_address_root,)

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        return LightningStoreCapabilities(thread_safe=True, async_safe=True, zero_copy=True, otlp_traces=True)

    def otlp_traces_endpoint(self) -> str:
        return f"{self.server_address_root}{routes.TRACES}"

    async def dequeue_many_rollouts(
        self, *, limit: int = 1, worker_id: str | None = None
    ) -> Sequence[AttemptedRollout]:
        arguments = {"limit": limit, "worker_id": worker_id}
        body = _CLAIM.body_of(arguments)
        result: Sequence[AttemptedRollout] = await self._connection.run(self._claim(arguments, body))
        return result

    async def wait_for_work(self, timeout: float) -> bool:
        end = time.monotonic() + timeout
        if _WORK not in self._not_served:
            try:
                return bool(await self._connection.run(self._work_before(end)))
            except _NotServedError:
                self._not_served.add(_WORK)
        return await super().wait_for_work(max(0.0, end - time.monotonic()))

    async def _work_before(self, end: float) -> bool:
        """Wait for work until `end` (`time.monotonic`). Runs in the thread of the connection.

        All callers share one request: a thousand runners would need as many connections.
        """
        loop = asyncio.get_running_loop()
        while True:
            left = max(0.0, min(end - time.monotonic(), HOLD_SECONDS))
            request = self._work_request
            if request is not None and request.get_loop() is loop and not request.done():
                await asyncio.wait({request}, timeout=left)
            else:
                arguments = {"timeout": left}
                request = self._work_request = asyncio.create_task(
                    self._ask(_WORK, arguments, _WORK.body_of(arguments), waiting=left)
                )
                # Its callers may have been cancelled: retrieve its error.
                request.add_done_callback(lambda done: done.cancelled() or done.exception())
                await asyncio.wait({request})
            if request.done() and request.result():
                return True
            if time.monotonic() >= end:
                return False

    async def wait_for_rollouts(self, *, rollout_ids: list[str], timeout: float | None = None) -> list[Rollout]:
        end = float("inf") if timeout is None else time.monotonic() + timeout
        missing = list(dict.fromkeys(rollout_ids))
        ended: dict[str, Rollout] = {}
        while missing:
            left = max(0.0, min(end - time.monotonic(), HOLD_SECONDS))
            for rollout in await self._call(_ENDS, {"rollout_ids": missing, "timeout": left}, waiting=left):
                ended[rollout.rollout_id] = rollout
            missing = [rollout_id for rollout_id in missing if rollout_id not in ended]
            if time.monotonic() >= end:
                break
        return [ended[rollout_id] for rollout_id in dict.fromkeys(rollout_ids) if rollout_id in ended]

    async def add_many_spans(self, spans: Sequence[Span]) -> Sequence[Span]:
        if not spans:
            return []

        async def one_by_one() -> list[Span]:
            stored = [await self._call(_ONE_SPAN, {"span": span}) for span in spans]
            return [span for span in stored if span is not None]

        new_spans: list[Span] = await self._if_served(_SPANS, {"spans": spans}, one_by_one)
        return new_spans

    async def update_many_workers(self, heartbeats: dict[str, dict[str, Any]]) -> None:
        otherwise = partial(super().update_many_workers, heartbeats)
        await self._if_served(_HEARTBEATS, {"heartbeats": heartbeats}, otherwise)

    async def get_many_span_sequence_ids(self, rollout_attempt_ids: Sequence[tuple[str, str]]) -> Sequence[int]:
        if not rollout_attempt_ids:
            return []

        async def one_by_one() -> list[int]:
            return [
                await self._call(_NUMBER, {"rollout_id": rollout_id, "attempt_id": attempt_id})
                for rollout_id, attempt_id in rollout_attempt_ids
            ]

        pairs = {"rollout_attempt_ids": rollout_attempt_ids}
        numbers: list[int] = await self._if_served(_NUMBERS, pairs, one_by_one)
        return numbers

    async def close(self) -> None:
        if giving_back := set(self._giving_back):  # a copy: the thread of the connection takes out what is done
            await self._connection.run(asyncio.wait(giving_back, timeout=_GIVING_BACK_SECONDS))
        await self._connection.close()

    async def _forward(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        route = routes.route_of(name)
        return await self._call(route, route.arguments_of(args, kwargs))

    async def _if_served(
        self, route: Route, arguments: Mapping[str, Any], otherwise: Callable[[], Awaitable[Any]]
    ) -> Any:
        """Call a route that agent-lightning does not have, or `otherwise` if the server does not serve it."""
        if route not in self._not_served:
            try:
                return await self._call(route, arguments)
            except _NotServedError:
                self._not_served.add(route)
        return await otherwise()

    async def _call(self, route: Route, arguments: Mapping[str, Any], waiting: float = 0.0) -> Any:
        body = b"" if route.method == "GET" else route.body_of(arguments)
        return await self._connection.run(self._ask(route, arguments, body, waiting))

    async def _ask(self, route: Route, arguments: Mapping[str, Any], body: bytes, waiting: float = 0.0) -> Any:
        """Send one request. Runs in the thread of the connection."""
        path = f"{routes.PREFIX}/{route.path_of(arguments)}"
        if route.method == "GET":
            query = urlencode(route.query_of(arguments))
            path = f"{path}?{query}" if query else path
        status, answer = await self._connection.send(route.method, path, body, changes=route.changes, waiting=waiting)
        if status >= 300:
            raise self._failure(status, answer)
        try:
            return route.result_of(answer, arguments)
        except ValueError as error:
            raise LightningStoreError(
                f"what answers at {self.server_address_root} is no store server, or one of another version: {error}"
            ) from error

    async def _claim(self, arguments: Mapping[str, Any], body: bytes) -> Sequence[AttemptedRollout]:
        """Claim rollouts; queue them again if the caller was cancelled. Runs in the thread of the connection."""
        claim = asyncio.create_task(self._ask(_CLAIM, arguments, body))
        try:
            claimed: Sequence[AttemptedRollout] = await asyncio.shield(claim)
            return claimed
        except asyncio.CancelledError:
            returning = asyncio.create_task(self._give_back(claim))
            self._giving_back.add(returning)
            returning.add_done_callback(self._giving_back.discard)
            raise

    async def _give_back(self, claim: asyncio.Task[Any]) -> None:
        """Queue claimed rollouts again, unless another attempt has started."""
        with contextlib.suppress(LightningStoreError):  # the server is gone, or this client: their limits end them
            for rollout in await claim:
                latest = await self.get_latest_attempt(rollout.rollout_id)
                if latest and latest.attempt_id == rollout.attempt.attempt_id and latest.status == "preparing":
                    await self.update_rollout(rollout.rollout_id, status="requeuing")

    def _failure(self, status: int, answer: bytes) -> Exception:
        """Return the error of a failed response."""
        detail, error_type = _detail_of(answer)
        if status == 401:
            return LightningStoreError(
                f"the store server at {self.server_address_root} asks for an API key, and this one is missing or "
                "wrong: set AGL_API_KEY, or api_key"
            )
        if status in (404, 405):
            return _NotServedError(f"the store server at {self.server_address_root} does not serve this: {detail}")
        if status < 500 or error_type == "ValueError":
            return ValueError(detail)
        if error_type == "NotImplementedError":
            return NotImplementedError(detail)
        if error_type == "LightningStoreError":
            return LightningStoreError(detail)
        return LightningStoreError(f"the store server at {self.server_address_root} failed ({status}): {detail}")


class _NotServedError(LightningStoreError):
    """The server has no such route."""


def _checked(address: str) -> str:
    url = address if "://" in address else f"http://{address}"
    try:
        parts = urlsplit(url)
        known = url.isprintable() and parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # the port is no number
        known = False
    if not known:
        raise UserError(f"store server {shown_address(address)!r}: expected an address like http://127.0.0.1:4747")
    return url.rstrip("/").removesuffix(routes.PREFIX)


def _detail_of(answer: bytes) -> tuple[str, str]:
    """Return detail and error type of a failed response; agent-lightning has the detail in a traceback."""
    try:
        failure = json.loads(answer)
        detail, error_type = failure["detail"], str(failure.get("error_type", ""))
    except (ValueError, TypeError, KeyError, AttributeError):
        return answer[:200].decode("utf-8", "replace"), ""
    trace = str(failure.get("traceback", "")).strip()
    if trace:
        detail = trace.rpartition("\n")[2].partition(": ")[2] or detail
    return (detail if isinstance(detail, str) else json.dumps(detail)), error_type


# The contract implements the other methods by these, for example enqueue_rollout by enqueue_many_rollouts.
forward_methods(LightningStoreClient, {route.call for route in routes.ROUTES} & set(STORE_METHODS) - {_ONE_SPAN.call})
