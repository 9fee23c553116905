"""The ASGI application of the store server: the routes of `routes`, OTLP traces, keys, errors, metrics."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Coroutine, Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, Final, get_args

from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route as HttpRoute
from starlette.types import Receive

from ...http import (
    METRICS_CONTENT_TYPE,
    PAGES,
    Admission,
    AdmittedEndpoint,
    AuthenticationError,
    DrainingError,
    ForbiddenError,
    HttpError,
    MetricFamily,
    NotServedError,
    OverloadedError,
    RequestMetrics,
    WebPages,
    disconnected,
    is_json,
    new_app,
    off_loop,
    read_body,
)
from ...types import AttemptedRollout, RolloutStatus
from ..base import LightningStore, LightningStoreError, LightningStoreStatistics
from ..ledger import carried_out_once
from ..ledger_store import LedgerStore
from . import routes
from .otlp import PROTOBUF, OtlpIntake, TooMuchError, status_message
from .routes import Route
from .wire_json import TooManyItemsError, check_counts, encode, is_large, message_of

logger = logging.getLogger(__name__)

_LONGEST_KEY: Final = 200
_ABOUT: Final = (
    "The rollouts, attempts and spans of a training, for an algorithm and runners elsewhere; agl rollouts list --store "
    "ADDRESS looks into it. Where a key is set (AGL_API_KEY), requests carry 'Authorization: Bearer KEY'."
)


_ERROR_TYPES: Final[dict[type[HttpError], str]] = {
    AuthenticationError: "Unauthorized",
    ForbiddenError: "Forbidden",
    NotServedError: "NotServed",
    OverloadedError: "Overloaded",
    DrainingError: "ServerStopping",
}


def json_response(status: int, body: bytes, headers: dict[str, str] | None = None) -> Response:
    """Return a response with a body of JSON."""
    return Response(body, status, headers, "application/json")


def failure(status: int, detail: str, error_type: str, headers: dict[str, str] | None = None) -> Response:
    """Return the response to a request that failed."""
    return json_response(status, json.dumps({"detail": detail, "error_type": error_type}).encode(), headers)


def stopping() -> Response:
    """Return the response of a server that stops."""
    return failure(503, "the store server is stopping", "ServerStopping", {"Retry-After": "1"})


def error_response(error: HttpError) -> Response:
    """Return the response for an error, in the shape of `failure`."""
    headers = error.headers
    if isinstance(error, AuthenticationError):
        headers["WWW-Authenticate"] = "Bearer"
    kind = _ERROR_TYPES.get(type(error), "ValueError" if error.status < 500 else "InternalError")
    return failure(error.status, error.message, kind, headers)


class RunningRequests:
    """Running requests by idempotency key; the store knows the finished ones. Used from one event loop."""

    def __init__(self) -> None:
        self._running: dict[str, asyncio.Task[Response]] = {}

    async def once(self, key: str, work: Coroutine[Any, Any, Response]) -> Response:
        """Return the response of `work`, or of the running request with this key, which outlives its caller."""
        task = self._running.get(key)
        if task is None:
            task = self._running[key] = asyncio.get_running_loop().create_task(work)
            task.add_done_callback(lambda done: self._running.pop(key))
        else:
            work.close()
        return await asyncio.shield(task)


class LongPolls:
    """Requests that wait for an event. Used from one event loop, ended from any thread."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: set[asyncio.Task[Response]] = set()
        self._ending = False

    async def hold(self, work: Coroutine[Any, Any, Response], receive: Receive) -> Response:
        """Return the response of `work`, or `stopping()` if the client leaves or the server stops first.

        Args:
            work: Answers the request.
            receive: The ASGI callable of the request, whose body has been read.
        """
        if self._ending:
            work.close()
            return stopping()
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
        return stopping() if waiting.cancelled() else waiting.result()

    def open(self) -> None:
        """Accept waiting requests (again)."""
        self._ending = False

    def end(self) -> None:
        """Answer all waiting requests, and refuse new ones."""
        self._ending = True
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._cancel_all)

    def _cancel_all(self) -> None:
        for task in self._waiting:
            task.cancel()


_SECONDS: Final = (0.001, 0.005, 0.02, 0.05, 0.2, 1.0, 5.0, 30.0)
_KINDS: Final = ("rollouts", "attempts", "spans", "resources", "workers")


class StoreMetrics:
    """Metrics of the requests to a store and of its contents.

    Args:
        store: Called from the event loop of the server.
    """

    def __init__(self, store: LightningStore) -> None:
        self._store = store
        self._statistics = LightningStoreStatistics()
        self._reading: asyncio.Task[LightningStoreStatistics] | None = None
        """Counts the contents for all scrapes that wait. It takes time in proportion to them, and needs no key."""
        self.requests = RequestMetrics("mini_agentic_rl_store", "kind", _SECONDS, self._gauges)

    async def text(self) -> bytes:
        """Return the metrics in Prometheus' text format.

        Raises:
            LightningStoreError: the store does not answer.
        """
        loop = asyncio.get_running_loop()
        if self._reading is None or self._reading.done() or self._reading.get_loop() is not loop:
            self._reading = loop.create_task(self._store.statistics())
        self._statistics = await asyncio.shield(self._reading)
        return self.requests.text()

    def _gauges(self) -> Iterable[MetricFamily]:
        counts = dict(self._statistics)
        items = {kind: float(str(counts[name])) for kind in _KINDS if (name := f"total_{kind}") in counts}
        yield MetricFamily.by_kind("items", "What the store holds.", items)
        by_status = dict.fromkeys(get_args(RolloutStatus), 0) | self._statistics.get("rollouts_by_status", {})
        rollouts: dict[tuple[str, ...], float] = {(status,): float(count) for status, count in by_status.items()}
        yield MetricFamily("rollouts", "Rollouts by status.", rollouts, ("status",))


def create_app(
    store: LightningStore,
    polls: LongPolls,
    admission: Admission,
    *,
    origins: Sequence[str] = (),
    pages: WebPages | None = None,
) -> Starlette:
    """Return the application.

    Args:
        store: The store; called from the event loop of the server.
        polls: The waiting requests.
        admission: Admits requests, except those for the health and the metrics, which need no key.
        origins: Web pages that may use the store from a browser; `*` means every page.
        pages: Pages at `/`.
    """
    running = RunningRequests()
    intake = OtlpIntake(store)
    metrics = StoreMetrics(store)
    limits = admission.limits

    async def read(request: Request) -> bytes:
        return await read_body(request, limits.max_body_bytes, gzip=True, within_seconds=limits.max_body_seconds)

    async def health(request: Request) -> Response:
        return stopping() if admission.draining else json_response(200, b'{"status":"ok"}')

    async def serve(request: Request) -> Response:
        path = request.scope["raw_path"].decode("ascii", "replace").partition(f"{routes.PREFIX}/")[2]
        match = routes.find(request.method, path)
        if match is None:
            raise NotServedError(request.method, request.url.path)
        route, ids = match
        body = await read(request) if request.method == "POST" else b""
        if body and not is_json(request.headers):
            return failure(415, "send the body as Content-Type: application/json", "ValueError")
        key = request.headers.get(routes.KEY_HEADER, "") if route.changes else ""
        if len(key) > _LONGEST_KEY:
            return failure(400, f"{routes.KEY_HEADER}: longer than {_LONGEST_KEY} characters", "ValueError")
        key = f"{path} {key}" if key else ""
        work = _answer(store, route, ids, request, body, key)
        if route.waits:
            with admission.resting(request.state.api_key):
                return await polls.hold(work, request.receive)
        return await (running.once(key, work) if key else work)

    async def traces(request: Request) -> Response:
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != PROTOBUF:
            return _protobuf(415, status_message(f"send traces as Content-Type: {PROTOBUF}"))
        try:
            return _protobuf(200, await intake.export_response(await read(request)))
        except LightningStoreError as error:
            return _protobuf(503, status_message(str(error)))
        except TooMuchError as error:
            return _protobuf(413, status_message(str(error)))
        except ValueError as error:
            return _protobuf(400, status_message(str(error)))

    async def scrape(request: Request) -> Response:
        try:
            return Response(await metrics.text(), media_type=METRICS_CONTENT_TYPE)
        except LightningStoreError as error:
            return failure(503, str(error), "LightningStoreError")

    return new_app(
        error_response,
        admission.keys,
        title="mini-agentic-rl store",
        about=_ABOUT,
        routes=[
            HttpRoute(routes.HEALTH, health, methods=["GET"]),
            HttpRoute(
                f"{routes.PREFIX}/{{path:path}}",
                AdmittedEndpoint("store", serve, admission, metrics.requests, error_response),
                methods=["GET", "POST"],
            ),
            HttpRoute(
                routes.TRACES,
                AdmittedEndpoint("traces", traces, admission, metrics.requests, _traces_error),
                methods=["POST"],
            ),
            HttpRoute(routes.METRICS, scrape, methods=["GET"]),
        ],
        open_paths=(*PAGES, routes.HEALTH, routes.METRICS),
        origins=origins,
        pages=pages,
    )


async def _answer(
    store: LightningStore, route: Route, ids: Mapping[str, str], request: Request, body: bytes, key: str
) -> Response:
    """Carry out a request; every error becomes a response."""
    try:
        query = request.query_params.multi_items()
        arguments = await off_loop(len(body), lambda: route.arguments_from(ids, query, body))
        check_counts(arguments if not route.pages else {**arguments, "limit": 0})
        if route.waits:
            arguments = route.held(arguments)
    except ValidationError as error:
        is_null = any(fault["input"] is None for fault in error.errors(include_url=False))
        return failure(400 if is_null else 422, message_of(error), "ValueError")
    except TooManyItemsError as error:
        return failure(413, str(error), "ValueError")
    except ValueError as error:
        return failure(422, str(error), "ValueError")
    try:
        if (
            route.pages
            and isinstance(store, LedgerStore)
            and getattr(type(store), route.call) is getattr(LedgerStore, route.call)  # not overridden
        ):
            parts = page_in_parts(store, route.call, arguments)
            first, second = await anext(parts), await anext(parts, None)
            if second is None:
                return json_response(route.status, first)
            return StreamingResponse(_joined(first, second, parts), route.status, media_type="application/json")
        with carried_out_once(key) if key else nullcontext():
            result = await getattr(store, route.call)(**arguments)
        try:
            return json_response(route.status, await _encoded(route, result, arguments))
        except ValueError:
            if route.call != "dequeue_many_rollouts":
                raise
            return json_response(route.status, await _encoded(route, await _fail_unsendable(store, result), arguments))
    except LightningStoreError as error:
        logger.warning("%s: %s", route.call, error)
        return failure(503, str(error), "LightningStoreError")
    except NotImplementedError as error:
        return failure(501, str(error) or f"this store has no {route.call}", "NotImplementedError")
    except (ValueError, OverflowError) as error:
        return failure(400, str(error), "ValueError")
    except Exception:  # an internal error must not stop the server
        logger.exception("%s failed", route.call)
        return failure(500, "the store server failed to answer; its log says why", "InternalError")


async def _encoded(route: Route, result: Any, arguments: Mapping[str, Any]) -> bytes:
    if is_large(result):
        return await asyncio.to_thread(route.answer_of, result, arguments)
    return route.answer_of(result, arguments)


def _protobuf(status: int, body: bytes) -> Response:
    return Response(body, status, {"Retry-After": "1"} if status == 503 else None, PROTOBUF)


def _traces_error(error: HttpError) -> Response:
    # OpenTelemetry's exporters for Python retry after 503, and drop the spans after 429
    status = 503 if isinstance(error, OverloadedError) else error.status
    return Response(status_message(error.message), status, error.headers, PROTOBUF)


async def _fail_unsendable(store: LightningStore, claimed: Sequence[AttemptedRollout]) -> list[AttemptedRollout]:
    """Return the claims that can be sent; fail the attempts of the others, with the reason in their metadata.

    A task that was put into a store in memory without its server may not be JSON.
    """
    sendable = []
    for rollout in claimed:
        try:
            encode(rollout, f"rollout {rollout.rollout_id}")
        except ValueError as error:
            logger.error("%s", error)
            await store.update_attempt(
                rollout.rollout_id, rollout.attempt.attempt_id, status="failed", metadata={"error": str(error)}
            )
        else:
            sendable.append(rollout)
    return sendable


_PART_BYTES: Final = 1024 * 1024
"""Approximate bytes of one part."""
_FIRST: Final = 4
"""Items of the first part: one item may be as large as the body of a request."""
_MOST: Final = 1000


async def _joined(first: bytes, second: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    yield second
    async for part in rest:
        yield part


async def page_in_parts(store: LedgerStore, call: str, arguments: Mapping[str, Any]) -> AsyncIterator[bytes]:
    """Yield the parts of the response to a query: the items that match when it begins, as they are when they are read.

    Args:
        store: The store.
        call: Name of the query method.
        arguments: Its arguments.

    Raises:
        ValueError: the store refuses the arguments, or an item is not JSON; the items before it have been yielded.
        LightningStoreError: the store cannot answer.
    """
    kind, page = await store.handles(call, arguments)
    handles = page.items
    body, read, step, comma = bytearray(b'{"items":['), 0, _FIRST, b""
    while read < len(handles):
        items = await store.items(kind, handles[read : read + step])
        read += step
        text = await asyncio.to_thread(encode, items, "") if is_large(items) else encode(items, "")
        step = max(1, min(4 * step, step * _PART_BYTES // len(text), _MOST))
        if items:
            body += comma + text[1:-1]
            comma = b","
        del items, text
        if len(body) > _PART_BYTES:
            yield bytes(body)
            body.clear()
    rest = encode({"limit": page.limit, "offset": page.offset, "total": page.total}, "")
    yield bytes(body) + b"]," + rest[1:]
