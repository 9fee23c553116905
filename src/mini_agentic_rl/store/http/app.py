"""The ASGI application of the store server: the routes of `wire`, the intake of traces, keys, errors."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence, Sized
from functools import partial
from typing import Any, Final

from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as HttpRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from ...http import ApiKeys, ForbiddenError, HttpError, is_from_web_page, new_app, read_body
from ...types import AttemptedRollout
from ..base import LightningStore, LightningStoreError
from . import wire
from .openapi import store_document
from .otlp import PROTOBUF, export_response, status_message
from .responses import LongPolls, RememberedResponses, StoreResponse, error_response, failure, http_response
from .route import Route
from .wire_json import encode

logger = logging.getLogger(__name__)

_LONGEST_KEY: Final = 200
_MANY: Final = 500
_OPEN: Final = StoreResponse(200, b'{"status":"ok"}')


def create_app(store: LightningStore, polls: LongPolls, *, api_key: str | None, max_body_bytes: int) -> Starlette:
    """Return the application.

    Args:
        store: Answers the requests; called from the event loop that serves the application.
        polls: Holds the requests that wait.
        api_key: Bearer token that every request but the one for the health must carry; None lets everybody in.
        max_body_bytes: Larger request bodies are refused with status 413.
    """
    remembered = RememberedResponses()

    async def serve(request: Request) -> Response:
        path = request.scope["raw_path"].decode("ascii", "replace").partition(f"{wire.PREFIX}/")[2]
        if path == "health":
            return http_response(_OPEN)
        found = wire.find(request.method, path)
        if found is None:
            raise HTTPException(404)
        route, ids = found
        body = await read_body(request, max_body_bytes, gzip=True) if request.method == "POST" else b""
        if body and request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            return http_response(failure(415, "send the body as Content-Type: application/json", "ValueError"))
        work = partial(_answer, store, route, ids, request, body)
        key = request.headers.get(wire.KEY_HEADER, "") if route.changes else ""
        if route.waits:
            return http_response(await polls.hold(work(), request.receive))
        if len(key) > _LONGEST_KEY:
            return http_response(
                failure(400, f"{wire.KEY_HEADER}: longer than {_LONGEST_KEY} characters", "ValueError")
            )
        return http_response(await (remembered.once(f"{path} {key}", work) if key else work()))

    async def traces(request: Request) -> Response:
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != PROTOBUF:
            return _protobuf(415, status_message(f"send traces as Content-Type: {PROTOBUF}"))
        try:
            body = await read_body(request, max_body_bytes, gzip=True)
            return _protobuf(200, await export_response(store, body))
        except HttpError as error:
            return _protobuf(error.status, status_message(str(error)))
        except LightningStoreError as error:
            return _protobuf(503, status_message(str(error)))
        except ValueError as error:
            return _protobuf(400, status_message(str(error)))

    app = new_app(
        error_response,
        routes=[
            HttpRoute(f"{wire.PREFIX}/{{path:path}}", serve, methods=["GET", "POST"]),
            HttpRoute(wire.TRACES, traces, methods=["POST"]),
        ],
        openapi=lambda: store_document(max_body_bytes),
    )
    hint = "'Authorization: Bearer KEY' (AGL_API_KEY)"
    app.add_middleware(_AccessCheck, keys=ApiKeys([] if api_key is None else [api_key], bearer_only=True, hint=hint))
    return app


class _AccessCheck:
    """Let a request through if it carries the key; asking for the health needs none. A server without a key listens on
    the loopback only, and there takes no request that a web page of another site may have sent."""

    def __init__(self, app: ASGIApp, keys: ApiKeys) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] != wire.HEALTH:
            headers = Headers(scope=scope)
            try:
                self._keys.check(headers)
                if self._keys.first is None and is_from_web_page(headers):
                    raise ForbiddenError(
                        "without an API key, only requests to localhost or an IP address and from no web page are taken"
                    )
            except HttpError as error:
                await error_response(error)(scope, receive, send)
                return
        await self._app(scope, receive, send)


async def _answer(
    store: LightningStore, route: Route, ids: Mapping[str, str], request: Request, body: bytes
) -> StoreResponse:
    """Carry out a request; whatever goes wrong becomes a response."""
    try:
        arguments = route.arguments_from(ids, request.query_params.multi_items(), body)
        if route.waits:
            arguments = route.held(arguments)
    except ValidationError as error:
        return failure(422, _told(error), "ValueError")
    except ValueError as error:
        return failure(422, str(error), "ValueError")
    try:
        result = await getattr(store, route.call)(**arguments)
        try:
            return StoreResponse(route.status, await _encoded(route, result, arguments))
        except ValueError:
            if route.call != "dequeue_many_rollouts":
                raise
            return StoreResponse(route.status, await _encoded(route, await _fail_unsendable(store, result), arguments))
    except LightningStoreError as error:
        logger.warning("%s: %s", route.call, error)
        return failure(503, str(error), "LightningStoreError")
    except NotImplementedError as error:
        return failure(501, str(error) or f"this store has no {route.call}", "NotImplementedError")
    except (ValueError, OverflowError) as error:
        return failure(400, str(error), "ValueError")
    except Exception:  # a fault of ours or of the store must end this response, not the server
        logger.exception("%s failed", route.call)
        return failure(500, "the store server failed to answer; its log says why", "InternalError")


async def _encoded(route: Route, result: Any, arguments: Mapping[str, Any]) -> bytes:
    if isinstance(result, Sized) and len(result) > _MANY:
        return await asyncio.to_thread(route.answer_of, result, arguments)
    return route.answer_of(result, arguments)


def _protobuf(status: int, body: bytes) -> Response:
    return Response(body, status, {"Retry-After": "1"} if status == 503 else None, PROTOBUF)


def _told(error: ValidationError) -> str:
    faults = (f"{'.'.join(map(str, fault['loc'])) or 'body'}: {fault['msg']}" for fault in error.errors())
    return "; ".join(faults)


async def _fail_unsendable(store: LightningStore, claimed: Sequence[AttemptedRollout]) -> list[AttemptedRollout]:
    """Return the claims that can be sent; fail the attempts of the others, with the reason in their metadata.

    A process that puts tasks into a store in memory, past its server, may put in what is not JSON.
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
