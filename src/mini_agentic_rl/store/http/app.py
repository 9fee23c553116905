"""The ASGI application of the store server: the routes of `wire`, the intake of traces, keys, errors."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sized
from functools import partial
from typing import Any, Final

from fastapi import FastAPI, Request
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from ..base import LightningStore, LightningStoreError
from . import wire
from .answers import Answer, LongPolls, RememberedAnswers, failure, response_of
from .body import BodyError, body_of
from .claims import fail_unsendable
from .gate import Gate
from .openapi import document
from .otlp import PROTOBUF, export_response, status_message
from .route import Route

logger = logging.getLogger(__name__)

CLIENT_CLOSED_REQUEST: Final = 499
_LONGEST_KEY: Final = 200
_MANY: Final = 500
_OPEN: Final = Answer(200, b'{"status":"ok"}')


def create_app(store: LightningStore, polls: LongPolls, *, api_key: str | None, max_body_bytes: int) -> FastAPI:
    """The application.

    Args:
        store: Answers the requests; called from the event loop that serves the application.
        polls: Holds the requests that wait.
        api_key: Bearer token that every request but the one for the health must carry; None lets everybody in.
        max_body_bytes: Larger request bodies are refused with status 413.
    """
    remembered = RememberedAnswers()

    async def serve(request: Request) -> Response:
        path = request.scope["raw_path"].decode("ascii", "replace").partition(f"{wire.PREFIX}/")[2]
        if path == "health":
            return response_of(_OPEN)
        found = wire.find(request.method, path)
        if found is None:
            raise HTTPException(404)
        route, ids = found
        try:
            body = await body_of(request, max_body_bytes) if request.method == "POST" else b""
        except BodyError as error:
            return response_of(failure(error.status, str(error), "ValueError"))
        if body and request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            return response_of(failure(415, "send the body as Content-Type: application/json", "ValueError"))
        work = partial(_answer, store, route, ids, request, body)
        key = request.headers.get(wire.KEY_HEADER, "") if route.changes else ""
        if route.waits:
            return response_of(await polls.hold(work(), request.receive))
        if len(key) > _LONGEST_KEY:
            return response_of(failure(400, f"{wire.KEY_HEADER}: longer than {_LONGEST_KEY} characters", "ValueError"))
        return response_of(await (remembered.once(f"{path} {key}", work) if key else work()))

    async def traces(request: Request) -> Response:
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != PROTOBUF:
            return _protobuf(415, status_message(f"send traces as Content-Type: {PROTOBUF}"))
        try:
            body = await body_of(request, max_body_bytes)
            return _protobuf(200, await export_response(store, body))
        except BodyError as error:
            return _protobuf(error.status, status_message(str(error)))
        except LightningStoreError as error:
            return _protobuf(503, status_message(str(error)))
        except ValueError as error:
            return _protobuf(400, status_message(str(error)))

    app = _App(max_body_bytes)
    app.add_route(f"{wire.PREFIX}/{{path:path}}", serve, methods=["GET", "POST"])
    app.add_route(wire.TRACES, traces, methods=["POST"])
    app.add_exception_handler(HTTPException, _not_served)
    app.add_exception_handler(ClientDisconnect, _gone)
    app.add_exception_handler(Exception, _failed)
    app.add_middleware(Gate, api_key=api_key)
    return app


async def _answer(store: LightningStore, route: Route, ids: Mapping[str, str], request: Request, body: bytes) -> Answer:
    """Carry out a request; whatever goes wrong becomes an answer."""
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
            return Answer(route.status, await _body_of(route, result, arguments))
        except ValueError:
            if route.call != "dequeue_many_rollouts":
                raise
            return Answer(route.status, await _body_of(route, await fail_unsendable(store, result), arguments))
    except LightningStoreError as error:
        logger.warning("%s: %s", route.call, error)
        return failure(503, str(error), "LightningStoreError")
    except NotImplementedError as error:
        return failure(501, str(error) or f"this store has no {route.call}", "NotImplementedError")
    except (ValueError, OverflowError) as error:
        return failure(400, str(error), "ValueError")
    except Exception:  # a fault of ours or of the store must end this answer, not the server
        logger.exception("%s failed", route.call)
        return failure(500, "the store server failed to answer; its log says why", "InternalError")


async def _body_of(route: Route, result: Any, arguments: Mapping[str, Any]) -> bytes:
    if isinstance(result, Sized) and len(result) > _MANY:
        return await asyncio.to_thread(route.answer_of, result, arguments)
    return route.answer_of(result, arguments)


class _App(FastAPI):
    def __init__(self, max_body_bytes: int) -> None:
        super().__init__(title="mini-agentic-rl store", docs_url=None, redoc_url=None)
        self._max_body_bytes = max_body_bytes

    def openapi(self) -> dict[str, Any]:
        return document(self._max_body_bytes)


def _protobuf(status: int, body: bytes) -> Response:
    return Response(body, status, {"Retry-After": "1"} if status == 503 else None, PROTOBUF)


def _told(error: ValidationError) -> str:
    faults = (f"{'.'.join(map(str, fault['loc'])) or 'body'}: {fault['msg']}" for fault in error.errors())
    return "; ".join(faults)


async def _not_served(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 404
    headers = error.headers if isinstance(error, HTTPException) else None
    answer = failure(status, f"{request.method} {request.url.path} is not served here", "NotServed")
    return Response(answer.body, status, headers, "application/json")


async def _gone(request: Request, error: Exception) -> Response:
    return Response(status_code=CLIENT_CLOSED_REQUEST)


async def _failed(request: Request, error: Exception) -> Response:
    return response_of(failure(500, "the store server failed to answer; its log says why", "InternalError"))
