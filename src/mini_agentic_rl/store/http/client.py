"""A store that is reached over HTTP: the routes of `wire`, seen from the other side."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Literal
from urllib.parse import urlencode, urlsplit

from ...config import LightningEnvVar, resolve_str_env_var
from ...errors import UserError
from ...types import AttemptedRollout, Rollout, RolloutStatus, Span
from ..base import STORE_METHODS
from ..capabilities import LightningStoreCapabilities
from ..errors import LightningStoreError
from ..threading import ForwardingStore, forward_methods
from . import wire
from .connection import Connection
from .route import HOLD_SECONDS, Route

_CLAIM: Final = wire.route_of("dequeue_many_rollouts")
_WORK: Final = wire.route_of("wait_for_work")
_HEARTBEATS: Final = wire.route_of("update_many_workers")
_ENDS: Final = wire.route_of("wait_for_rollouts")
_ONE_SPAN: Final = wire.route_of("add_span")
_SPANS: Final = wire.route_of("add_many_spans")
_WALK: Final = wire.route_of("walk_rollouts")
_REWARDS: Final = wire.route_of("get_reward_spans")
_NUMBER: Final = wire.route_of("get_next_span_sequence_id")
_NUMBERS: Final = wire.route_of("get_many_span_sequence_ids")
_GIVING_BACK_SECONDS: Final = 5.0


class LightningStoreClient(ForwardingStore):
    """The store of a `LightningStoreServer`, or of an agent-lightning 0.3 store server.

    It may be used from any thread and event loop, pickled to another process, and taken over a fork. Methods of the
    contract that are not written out here are requests under the contract's signature: see the end of this module.

    A call that is cancelled may have been carried out; rollouts that it has claimed are given back.

    Args:
        server_address: http://host:port of the server; what follows it, `/v1/agl`, may stand there too.
        api_key: Bearer token to send; without one, that of the environment variable AGL_API_KEY.
        retry_seconds: For how long a call is tried again when the server cannot be reached.
        request_timeout: Most seconds for an answer that does not wait for anything.
        connection_timeout: Most seconds to connect.
        retry_delays, health_retry_delays: Agent-lightning's way to say `retry_seconds`: pauses, which are added up.

    Raises:
        UserError: `server_address` is no address.
        LightningStoreError: from any call: the server cannot be reached, refuses, or its store cannot serve.
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
        self.server_address = f"{self.server_address_root}{wire.PREFIX}"
        """URL that the routes of the store stand below."""
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
        self._asking: asyncio.Task[Any] | None = None
        """Waits for work."""

    def __reduce__(self) -> tuple[Callable[..., LightningStoreClient], tuple[Any, ...]]:
        return partial(LightningStoreClient, **self._settings), (self.server_address_root,)

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        return LightningStoreCapabilities(thread_safe=True, async_safe=True, zero_copy=True, otlp_traces=True)

    def otlp_traces_endpoint(self) -> str:
        return f"{self.server_address_root}{wire.TRACES}"

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
        """Wait for work until a time of the steady clock. Runs in the thread of the connection.

        One request asks for all that wait: where there are a thousand runners, as many would be more than it can carry.
        """
        loop = asyncio.get_running_loop()
        while True:
            left = max(0.0, min(end - time.monotonic(), HOLD_SECONDS))
            asking = self._asking
            if asking is not None and asking.get_loop() is loop and not asking.done():
                await asyncio.wait({asking}, timeout=left)
            else:
                arguments = {"timeout": left}
                asking = self._asking = asyncio.create_task(
                    self._ask(_WORK, arguments, _WORK.body_of(arguments), waiting=left)
                )
                asking.add_done_callback(_look_at)
                await asyncio.wait({asking})
            if asking.done() and asking.result():
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
        if _SPANS not in self._not_served:
            try:
                stored: list[Span] = await self._call(_SPANS, {"spans": spans})
                return stored
            except _NotServedError:
                self._not_served.add(_SPANS)
        one_by_one = [await self._call(_ONE_SPAN, {"span": span}) for span in spans]
        return [span for span in one_by_one if span is not None]

    async def walk_rollouts(
        self,
        beyond: str | None = None,
        *,
        status_in: Sequence[RolloutStatus] | None = None,
        sort_order: Literal["asc", "desc"] = "asc",
        limit: int = 100,
    ) -> Sequence[Rollout]:
        asked: dict[str, Any] = {"status_in": status_in, "sort_order": sort_order, "limit": limit}
        otherwise = partial(super().walk_rollouts, beyond, **asked)
        rollouts: list[Rollout] = await self._if_served(_WALK, {"beyond": beyond, **asked}, otherwise)
        return rollouts

    async def get_reward_spans(self, rollout_ids: Sequence[str]) -> Sequence[Span]:
        otherwise = partial(super().get_reward_spans, rollout_ids)
        spans: list[Span] = await self._if_served(_REWARDS, {"rollout_ids": list(rollout_ids)}, otherwise)
        return spans

    async def update_many_workers(self, heartbeats: dict[str, dict[str, Any]]) -> None:
        otherwise = partial(super().update_many_workers, heartbeats)
        await self._if_served(_HEARTBEATS, {"heartbeats": heartbeats}, otherwise)

    async def get_many_span_sequence_ids(self, rollout_attempt_ids: Sequence[tuple[str, str]]) -> Sequence[int]:
        if not rollout_attempt_ids:
            return []
        if _NUMBERS not in self._not_served:
            try:
                numbers: list[int] = await self._call(_NUMBERS, {"rollout_attempt_ids": rollout_attempt_ids})
                return numbers
            except _NotServedError:
                self._not_served.add(_NUMBERS)
        return [
            await self._call(_NUMBER, {"rollout_id": rollout_id, "attempt_id": attempt_id})
            for rollout_id, attempt_id in rollout_attempt_ids
        ]

    async def close(self) -> None:
        if self._giving_back:
            await self._connection.run(self._gave_back())
        await self._connection.close()

    async def _forward(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        route = wire.route_of(name)
        return await self._call(route, route.arguments_of(args, kwargs))

    async def _if_served(
        self, route: Route, arguments: Mapping[str, Any], otherwise: Callable[[], Awaitable[Any]]
    ) -> Any:
        """Call a route of our own, or do the same by others where the server has not got it."""
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
        path = f"{wire.PREFIX}/{route.path_of(arguments)}"
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
        """Claim rollouts; what comes after the caller has gone is given back. Runs in the thread of the connection."""
        claim = asyncio.create_task(self._ask(_CLAIM, arguments, body))
        try:
            claimed: Sequence[AttemptedRollout] = await asyncio.shield(claim)
            return claimed
        except asyncio.CancelledError:
            returning = asyncio.create_task(self._give_back(claim))
            self._giving_back.add(returning)
            returning.add_done_callback(self._giving_back.discard)
            raise

    async def _gave_back(self) -> None:
        if self._giving_back:
            await asyncio.wait(set(self._giving_back), timeout=_GIVING_BACK_SECONDS)

    async def _give_back(self, claim: asyncio.Task[Any]) -> None:
        """Queue rollouts again that nobody is going to run, unless somebody has gone on with them."""
        for rollout in await claim:
            latest = await self.get_latest_attempt(rollout.rollout_id)
            if latest is not None and latest.attempt_id == rollout.attempt.attempt_id and latest.status == "preparing":
                await self.update_rollout(rollout.rollout_id, status="requeuing")

    def _failure(self, status: int, answer: bytes) -> Exception:
        """Return the error that a failed response stands for."""
        detail, error_type = _told(answer)
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


def _look_at(asking: asyncio.Task[Any]) -> None:
    """Retrieve the error of a question whose askers may have gone."""
    if not asking.cancelled():
        asking.exception()


class _NotServedError(LightningStoreError):
    """The server has no such route."""


def _checked(address: str) -> str:
    url = address if "://" in address else f"http://{address}"
    try:
        parts = urlsplit(url)
        known = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # the port is no number
        known = False
    if not known:
        raise UserError(f"store server {address!r}: expected an address like http://127.0.0.1:4747")
    return url.rstrip("/").removesuffix(wire.PREFIX)


def _told(answer: bytes) -> tuple[str, str]:
    """Return (what is wrong, name of the error) of a failed response; agent-lightning's tells it in a traceback."""
    try:
        told = json.loads(answer)
        detail, error_type = told["detail"], str(told.get("error_type", ""))
    except (ValueError, TypeError, KeyError, AttributeError):
        return answer[:200].decode("utf-8", "replace"), ""
    trace = str(told.get("traceback", "")).strip()
    if trace:
        detail = trace.rpartition("\n")[2].partition(": ")[2] or detail
    return (detail if isinstance(detail, str) else json.dumps(detail)), error_type


# The others are made of these by the contract itself: enqueue_rollout of enqueue_many_rollouts, and so on.
forward_methods(LightningStoreClient, {route.call for route in wire.ROUTES} & set(STORE_METHODS) - {_ONE_SPAN.call})
