"""What the gateway's applications have in common: the door, bounded bodies, rollout URLs, OpenAI's error shape."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, TypeAlias

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from .dialects import Dialect
from .dialects.base import Counting, Lookup, encode, json_object
from .errors import BodyTooLargeError, GatewayError, UnknownModelError
from .limits import Gate
from .metrics import CLIENT_CLOSED_REQUEST, CONTENT_TYPE, GatewayMetrics, Watch

logger = logging.getLogger(__name__)

Endpoint: TypeAlias = Callable[[Request], Awaitable[Response]]
Count: TypeAlias = Callable[[dict[str, Any]], int]
"""How many tokens the prompt of a chat request has."""
Refusal: TypeAlias = Callable[[GatewayError], dict[str, Any]]
"""The body that tells of an error."""

ROLLOUT_PREFIX: Final = "/rollout/{rollout_id}/attempt/{attempt_id}"


class EventStream(Response):
    """An answer of server-sent events, which may fail after it has begun."""

    failed = False


def new_app(lifespan: Callable[[Starlette], AbstractAsyncContextManager[None]] | None = None) -> Starlette:
    """An application that answers an unknown path in OpenAI's error shape; `lifespan` is open while it serves."""
    return Starlette(exception_handlers={HTTPException: _no_such_path}, lifespan=lifespan)


def add_dialect(
    app: Starlette,
    dialect: Dialect,
    endpoint: Endpoint,
    gate: Gate,
    metrics: GatewayMetrics,
    count: Count | None = None,
) -> None:
    """Serve a dialect at its path and under each attempt's own URL; who comes in is counted. What it remembers can be
    looked up by those who have a key, and so can the lengths of prompts where `count` is given."""
    door = _Door(endpoint, dialect, gate, metrics)
    for prefix in ("", ROLLOUT_PREFIX):
        app.router.routes.append(Route(prefix + dialect.path, door, methods=["POST"]))
        for lookup in dialect.lookups:
            found = _guarded(_looked_up(lookup, gate), dialect.refusal)
            app.router.routes.append(Route(prefix + lookup.path, found, methods=[lookup.method]))
        if count is not None and dialect.counting is not None:
            counted = _guarded(_counted(dialect.counting, count, gate), dialect.refusal)
            app.router.routes.append(Route(prefix + dialect.counting.path, counted, methods=["POST"]))


def add_information(app: Starlette, path: str, endpoint: Endpoint) -> None:
    """Serve what can be asked at any time, at `path` and under each attempt's own URL."""
    for prefix in ("", ROLLOUT_PREFIX):
        app.router.routes.append(Route(prefix + path, _guarded(endpoint, GatewayError.body), methods=["GET"]))


def add_models(app: Starlette, gate: Gate, names: Callable[[], Sequence[str]], facts: dict[str, Any]) -> None:
    """Serve the list of models, and each by its name, to those who have a key.

    Args:
        names: tells what may be asked for.
        facts: what is told of every model beside its name.
    """

    def row(name: str) -> dict[str, Any]:
        return {"id": name, "object": "model", "created": 0, **facts}

    async def models(request: Request) -> Response:
        gate.keys.check(request.headers)
        return json_response({"object": "list", "data": [row(name) for name in names()]})

    async def model(request: Request) -> Response:
        gate.keys.check(request.headers)
        name, known = request.path_params["model"], names()
        if name not in known:
            raise UnknownModelError(name, known)
        return json_response(row(name))

    add_information(app, "/v1/models", models)
    add_information(app, "/v1/models/{model:path}", model)


def add_health(app: Starlette, gate: Gate, metrics: GatewayMetrics, facts: Callable[[], dict[str, Any]]) -> None:
    """Serve `/health`, with status 503 once the server drains, and `/metrics`; neither asks for a key."""

    async def health(request: Request) -> Response:
        state = "draining" if gate.draining else "paused" if gate.paused else "ok"
        return json_response({"status": state, **facts()}, 503 if gate.draining else 200)

    async def scrape(request: Request) -> Response:
        return Response(metrics.text(), media_type=CONTENT_TYPE)

    add_information(app, "/health", health)
    add_information(app, "/v1/health", health)
    add_information(app, "/metrics", scrape)


def scope_of(request: Request) -> tuple[str, str] | None:
    """(rollout id, attempt id) of the URL; None under the plain one."""
    rollout_id = request.path_params.get("rollout_id")
    return None if rollout_id is None else (rollout_id, request.path_params["attempt_id"])


async def body_of(request: Request, limit: int) -> bytes:
    """The body.

    Raises:
        BodyTooLargeError: it has more than `limit` bytes.
    """
    parts = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > limit:
            raise BodyTooLargeError(f"the request's body exceeds {limit} bytes (max_body_bytes)")
        parts.append(part)
    return b"".join(parts)


def json_response(value: dict[str, Any], status: int = 200) -> Response:
    """An answer of compact JSON."""
    return Response(encode(value), status, media_type="application/json")


def gone() -> Response:
    """What is answered to a client that went away: nobody reads it."""
    return Response(status_code=CLIENT_CLOSED_REQUEST)


class _Door:
    """One dialect's endpoint as an ASGI application: requests come in by the gate, stay inside until their answer is
    sent, and are counted."""

    def __init__(self, endpoint: Endpoint, dialect: Dialect, gate: Gate, metrics: GatewayMetrics) -> None:
        self._endpoint = _guarded(endpoint, dialect.refusal)
        self._refusal = dialect.refusal
        self._name = dialect.path.rpartition("/v1/")[2]
        self._gate = gate
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        watch = Watch(receive, send)
        request = Request(scope, watch.receive, watch.send)
        streamed = False
        try:
            try:
                with self._gate.admitted(request.headers):
                    response = await self._endpoint(request)
                    streamed = isinstance(response, EventStream)
                    await response(scope, watch.receive, watch.send)
                    watch.broken = isinstance(response, EventStream) and response.failed
            except GatewayError as error:  # of the gate: the endpoint turns its own into answers
                await _refused(error, self._refusal)(scope, watch.receive, watch.send)
        finally:
            self._metrics.observe(self._name, watch, streamed=streamed)


def _looked_up(lookup: Lookup, gate: Gate) -> Endpoint:
    async def answer(request: Request) -> Response:
        gate.keys.check(request.headers)
        return json_response(lookup.answer(request.path_params["id"], scope_of(request)))

    return answer


def _counted(counting: Counting, count: Count, gate: Gate) -> Endpoint:
    async def answer(request: Request) -> Response:
        gate.keys.check(request.headers)
        body = json_object(await body_of(request, gate.limits.max_body_bytes))
        return json_response(counting.answer(count(counting.chat(body, scope_of(request)))))

    return answer


def _guarded(endpoint: Endpoint, refusal: Refusal) -> Endpoint:
    """The endpoint with every failure turned into an answer that tells of it."""

    async def call(request: Request) -> Response:
        try:
            return await endpoint(request)
        except GatewayError as error:
            return _refused(error, refusal)
        except ClientDisconnect:
            return gone()
        except Exception:  # a fault of ours or of the backend must end this answer, not the server
            logger.exception("%s %s failed", request.method, request.url.path)
            return _refused(GatewayError("the server failed to answer; its log says why"), refusal)

    return call


def _refused(error: GatewayError, refusal: Refusal) -> Response:
    return Response(encode(refusal(error)), error.status, headers=error.headers(), media_type="application/json")


async def _no_such_path(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    refusal = GatewayError(f"{request.method} {request.url.path} is not served here", kind="invalid_request_error")
    return Response(encode(refusal.body()), status, media_type="application/json")
