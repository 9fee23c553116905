"""An ASGI application whose failures are responses, and endpoints that requests enter by an admission.

A request of a served path: `AdmittedEndpoint` lets it in or refuses it, `guarded` runs the endpoint and turns whatever
it raises into a response in the server's own shape, and the request is counted when the last byte was sent.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, TypeAlias, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from ..errors import log_failure
from .access import AccessCheck, ApiKeys
from .admission import Admission
from .errors import HttpError, NotServedError
from .json_text import encode
from .metrics import CLIENT_CLOSED_REQUEST, RequestMetrics, RequestWatch
from .page import PAGES, WebPages, described_by, html, served_by

logger = logging.getLogger(__name__)

T = TypeVar("T")

FAILED: Final = "the server failed to answer; its log says why"

Endpoint: TypeAlias = Callable[[Request], Awaitable[Response]]
ErrorResponse: TypeAlias = Callable[[HttpError], Response]
"""Makes the response that tells of an error, in the shape that the server's clients expect."""


def new_app(
    respond: ErrorResponse,
    keys: ApiKeys,
    *,
    title: str,
    about: str,
    routes: Sequence[BaseRoute] = (),
    lifespan: Callable[[Starlette], AbstractAsyncContextManager[None]] | None = None,
    openapi: Callable[[], dict[str, Any]] | None = None,
    open_paths: Collection[str] | None = None,
    origins: Collection[str] = (),
    pages: WebPages | None = None,
) -> Starlette:
    """Return an application that answers an unknown path, or a failure that nothing caught, by `respond`, and takes
    nothing from web pages where it asks for no key.

    Args:
        respond: makes the responses that tell of errors.
        keys: those that its endpoints ask for.
        title: name of the server, on the page that a browser is shown at `/` and `/docs`.
        about: how it is used, on that page.
        routes: what it serves.
        lifespan: open while it serves.
        openapi: makes its OpenAPI document, which is then served at `/openapi.json`.
        open_paths: paths that are served without a key, where every other asks for one; None leaves that to the
            endpoints.
        origins: web pages that may use it from a browser: their origins, or `*` for every page.
        pages: shown at `/` in place of the page that lists what is served, which stays at `/docs`.
    """

    async def not_served(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return respond(NotServedError(request.method, request.url.path, error.status_code, error.headers))

    async def refused(request: Request, error: Exception) -> Response:
        return respond(error if isinstance(error, HttpError) else HttpError(FAILED))

    async def left(request: Request, error: Exception) -> Response:
        return client_gone()

    async def shown(request: Request) -> Response:
        served = served_by(request.app.routes)
        return HTMLResponse(html(title, about, [*([] if openapi is None else described_by(openapi())), *served]))

    all_routes: list[BaseRoute] = [*(Route(path, shown, methods=["GET"]) for path in PAGES), *routes]
    if pages is not None:
        all_routes = [*pages.routes, *all_routes]
        open_paths = None if open_paths is None else {*open_paths, *pages.open_paths}
    if openapi is not None:
        make = openapi

        async def described(request: Request) -> Response:
            return JSONResponse(make())

        all_routes.insert(0, Route("/openapi.json", described, methods=["GET"]))
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


def guarded(endpoint: Endpoint, respond: ErrorResponse) -> Endpoint:
    """Return the endpoint with every failure turned into a response that tells of it."""

    async def call(request: Request) -> Response:
        try:
            return await endpoint(request)
        except HttpError as error:
            return respond(error)
        except ClientDisconnect:
            return client_gone()
        except Exception as error:  # a fault of ours or of the backend must end this response, not the server
            log_failure(logger, error, f"{request.method} {request.url.path} failed")
            return respond(HttpError(FAILED))

    return call


class EventStream(Response):
    """A response of server-sent events, which may fail after it has begun."""

    failed = False


class AdmittedEndpoint:
    """One endpoint as an ASGI application: requests come in by the admission, stay inside until their response is sent,
    and are counted.

    Args:
        name: what its requests are counted under.
        endpoint: answers them.
        admission: lets them in.
        metrics: counts them; None counts nothing.
        respond: makes the responses that tell of errors.
    """

    def __init__(
        self,
        name: str,
        endpoint: Endpoint,
        admission: Admission,
        metrics: RequestMetrics | None,
        respond: ErrorResponse,
    ) -> None:
        self._name = name
        self._endpoint = guarded(endpoint, respond)
        self._admission = admission
        self._metrics = metrics
        self._respond = respond

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        watch = RequestWatch(receive, send)
        request = Request(scope, watch.receive, watch.send)
        streamed = False
        try:
            try:
                with self._admission.admitted(request.headers) as request.state.api_key:
                    response = await self._endpoint(request)
                    streamed = isinstance(response, EventStream)
                    await response(scope, watch.receive, watch.send)
                    watch.broken = isinstance(response, EventStream) and response.failed
            except HttpError as error:  # of the admission: the endpoint turns its own into responses
                await self._respond(error)(scope, watch.receive, watch.send)
        finally:
            if self._metrics is not None:
                self._metrics.observe(self._name, watch, streamed=streamed)


def json_response(value: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a response of compact JSON."""
    return Response(encode(value), status, headers=headers, media_type="application/json")


def openai_response(error: HttpError) -> Response:
    """Return the response that tells of an error as OpenAI's API does."""
    return json_response(error.body(), error.status, error.headers)


def client_gone() -> Response:
    """Return what is answered to a client that went away: nobody reads it."""
    return Response(status_code=CLIENT_CLOSED_REQUEST)


async def disconnected(receive: Receive) -> None:
    """Return when the client has gone away; to be awaited once the body has been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def unless_disconnected(work: Awaitable[T], receive: Receive) -> T:
    """Return the result of `work`, which is cancelled when the client goes away.

    Raises:
        ClientDisconnect: the client went away first.
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
