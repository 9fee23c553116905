"""ASGI applications with admission, error responses and metrics.

`AdmittedEndpoint` admits or refuses a request, runs the endpoint, turns its errors into responses in the server's own
shape, and counts the request when its last byte has been sent.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import Message, Receive, Scope, Send

from ..errors import log_failure
from .admission import AccessCheck, Admission, ApiKeys
from .errors import HttpError, NotServedError
from .json_text import encode

logger = logging.getLogger(__name__)

T = TypeVar("T")

PAGES: Final = ("/", "/docs")
"""Paths of the overview of the routes, which needs no key."""

FAILED: Final = "the server failed to answer; its log says why"

Endpoint: TypeAlias = Callable[[Request], Awaitable[Response]]
ErrorResponse: TypeAlias = Callable[[HttpError], Response]
"""Returns the response for an error, in the shape that the server's clients expect."""


class WebPages(NamedTuple):
    """Pages that replace a server's own page at `/`."""

    routes: Sequence[BaseRoute]
    open_paths: Collection[str]
    """Paths that need no key."""


def new_app(
    respond: ErrorResponse,
    keys: ApiKeys,
    *,
    title: str,
    about: str,
    routes: Sequence[BaseRoute] = (),
    lifespan: Callable[[Starlette], AbstractAsyncContextManager[None]] | None = None,
    open_paths: Collection[str] | None = None,
    origins: Collection[str] = (),
    pages: WebPages | None = None,
) -> Starlette:
    """Return an application that turns unknown paths and uncaught errors into responses by `respond`, and refuses web
    pages if it has no keys.

    Args:
        respond: Returns the responses for errors.
        keys: The keys of its endpoints.
        title: Name of the server, in the overview at `/` and `/docs`.
        about: How to use it, in the overview.
        routes: Its routes.
        lifespan: Context manager that is open while it serves.
        open_paths: Paths that need no key, if all others do; None leaves the check to the endpoints.
        origins: Web pages that may use it from a browser: their origins, or `*` for every page.
        pages: Pages at `/`, in place of the overview, which stays at `/docs`.
    """

    async def not_served(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return respond(NotServedError(request.method, request.url.path, error.status_code, error.headers))

    async def refused(request: Request, error: Exception) -> Response:
        return respond(error if isinstance(error, HttpError) else HttpError(FAILED))

    async def left(request: Request, error: Exception) -> Response:
        return Response(status_code=CLIENT_CLOSED_REQUEST)

    async def overview(request: Request) -> Response:
        lines: list[str] = []
        for route in request.app.routes:
            # Routes under the URL of one attempt repeat the others.
            if isinstance(route, Route) and route.path not in PAGES and not route.path.startswith("/rollout/"):
                methods = sorted((route.methods or {"POST"}) - {"HEAD"})
                lines += [f"{method} {route.path.replace(':path}', '}')}" for method in methods]
        return PlainTextResponse("\n".join([title, "", about, "", *dict.fromkeys(lines), ""]))

    all_routes: list[BaseRoute] = [*(Route(path, overview, methods=["GET"]) for path in PAGES), *routes]
    if pages is not None:
        all_routes = [*pages.routes, *all_routes]
        open_paths = None if open_paths is None else {*open_paths, *pages.open_paths}
    middleware = [Middleware(AccessCheck, keys=keys, respond=respond, open_paths=open_paths, origins=origins)]
    if origins:
        cors = Middleware(CORSMiddleware, allow_origins=list(origins), allow_methods=["*"], allow_headers=["*"])
        middleware.insert(0, cors)
    return Starlette(
        routes=all_routes,
        middleware=middleware,
        lifespan=lifespan,
        exception_handlers={
            HTTPException: not_served,
            HttpError: refused,
            ClientDisconnect: left,
            Exception: refused,
        },
    )


class EventStream(Response):
    """A response of server-sent events; `failed` is set if it fails after it has begun."""

    failed = False


@dataclass(frozen=True, eq=False)
class AdmittedEndpoint:
    """An endpoint as an ASGI application, with admission until the response is sent, and metrics."""

    name: str
    """Name of its requests in the metrics."""
    endpoint: Endpoint
    admission: Admission
    metrics: RequestMetrics | None
    """Counts requests; None counts nothing."""
    respond: ErrorResponse
    """Returns the responses for errors."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        watch = RequestWatch(receive, send)
        request = Request(scope, watch.receive, watch.send)
        streamed = False
        try:
            try:
                with self.admission.admitted(request.headers) as request.state.api_key:
                    response = await self._answer(request)
                    streamed = isinstance(response, EventStream)
                    await response(scope, watch.receive, watch.send)
                    watch.broken = isinstance(response, EventStream) and response.failed
            except HttpError as error:  # of the admission
                await self.respond(error)(scope, watch.receive, watch.send)
        finally:
            if self.metrics is not None:
                self.metrics.observe(self.name, watch, streamed=streamed)

    async def _answer(self, request: Request) -> Response:
        try:
            return await self.endpoint(request)
        except HttpError as error:
            return self.respond(error)
        except ClientDisconnect:
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        except Exception as error:  # an internal error must not stop the server
            log_failure(logger, error, f"{request.method} {request.url.path} failed")
            return self.respond(HttpError(FAILED))


def json_response(value: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a response of compact JSON."""
    return Response(encode(value), status, headers=headers, media_type="application/json")


def openai_response(error: HttpError) -> Response:
    """Return the response for an error, in the shape of OpenAI's API."""
    return json_response(error.body(), error.status, error.headers)


async def disconnected(receive: Receive) -> None:
    """Return when the client has left. Await it after the body has been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def unless_disconnected(work: Awaitable[T], receive: Receive) -> T:
    """Return the result of `work`, which is cancelled when the client leaves.

    Raises:
        ClientDisconnect: the client left first.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(disconnected(receive))
    try:
        await asyncio.wait([task, gone], return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        gone.cancel()
        task.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


METRICS_CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
CLIENT_CLOSED_REQUEST: Final = 499
"""Status of a request whose client has left."""


@dataclass(frozen=True)
class MetricFamily:
    """A metric with values that are counted elsewhere."""

    name: str
    """Without the prefix."""
    text: str
    """Description of the values."""
    values: Mapping[tuple[str, ...], float]
    """Values by the values of the labels."""
    labels: tuple[str, ...] = ("kind",)

    @classmethod
    def by_kind(cls, name: str, text: str, values: Mapping[str, float]) -> MetricFamily:
        """Return a family with the one label `kind`."""
        return cls(name, text, {(kind,): float(value) for kind, value in values.items()})


class RequestWatch:
    """Observe one request and its response as they pass."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self.started = time.perf_counter()
        self.first_byte: float | None = None
        """Seconds to the first part of the body."""
        self.status = 0
        self.complete = False
        self.left = False
        """True if the client left before the response was complete."""
        self.broken = False
        """True if the response failed after it had begun."""

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.disconnect" and not self.complete:
            self.left = True
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        elif message["type"] == "http.response.body":
            if self.first_byte is None and message.get("body"):
                self.first_byte = time.perf_counter() - self.started
            self.complete = not message.get("more_body", False)
        await self._send(message)

    @property
    def outcome(self) -> str:
        """`ok`, `cancelled` (the client left), `refused` (a status of 400 to 499) or `failed`."""
        if self.left or self.status == CLIENT_CLOSED_REQUEST:
            return "cancelled"
        if self.broken or not self.complete or self.status >= 500:
            return "failed"
        return "refused" if self.status >= 400 else "ok"


class RequestMetrics:
    """Prometheus metrics of the requests to a server.

    Args:
        prefix: Prefix of all names.
        label: Label that distinguishes requests, such as "path".
        seconds: Bounds of the histograms of seconds.
        gauges: Returns metrics of the current state, at each scrape.
        counters: Returns metrics that never decrease, at each scrape.
        streams: Measure the time to the first event of streamed responses too.
    """

    def __init__(
        self,
        prefix: str,
        label: str,
        seconds: Sequence[float],
        gauges: Callable[[], Iterable[MetricFamily]],
        counters: Callable[[], Iterable[MetricFamily]] = lambda: (),
        *,
        streams: bool = False,
    ) -> None:
        self.registry = CollectorRegistry()
        """Registry, for further metrics of the server."""
        self.registry.register(_ScrapedFamilies(prefix, gauges, counters))
        self._requests = Counter(
            f"{prefix}_requests", f"Requests by {label} and outcome.", [label, "outcome"], registry=self.registry
        )

        def histogram(name: str, until: str) -> Histogram:
            text = f"Seconds from the arrival of a request to {until}, by {label}."
            return Histogram(f"{prefix}_{name}", text, [label], buckets=seconds, registry=self.registry)

        self._seconds = histogram("request_seconds", "the end of its answer")
        self._first = (
            histogram("time_to_first_token_seconds", "the first event of its streamed answer") if streams else None
        )

    def observe(self, name: str, watch: RequestWatch, *, streamed: bool = False) -> None:
        """Count a request that has ended."""
        outcome = watch.outcome
        self._requests.labels(name, outcome).inc()
        if outcome == "ok":
            self._seconds.labels(name).observe(time.perf_counter() - watch.started)
        if streamed and self._first is not None and watch.first_byte is not None:
            self._first.labels(name).observe(watch.first_byte)

    def text(self) -> bytes:
        """Return the metrics in Prometheus' text format."""
        return generate_latest(self.registry)


@dataclass(frozen=True, eq=False)
class _ScrapedFamilies(Collector):
    prefix: str
    gauges: Callable[[], Iterable[MetricFamily]]
    counters: Callable[[], Iterable[MetricFamily]]

    def describe(self) -> Iterable[Metric]:
        return []  # the registry would collect to learn the names, before there is anything to collect

    def collect(self) -> Iterable[Metric]:
        for kind, families in ((GaugeMetricFamily, self.gauges()), (CounterMetricFamily, self.counters())):
            for family in families:
                metric = kind(f"{self.prefix}_{family.name}", family.text, labels=family.labels)
                for labels, value in family.values.items():
                    metric.add_metric(labels, value)
                yield metric
