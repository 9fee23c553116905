"""The HTTP face of the gateway: OpenAI's paths, once plain and once under each attempt's own URL."""

from __future__ import annotations

import hmac
import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from . import responses
from .chat import ChatService
from .errors import AuthenticationError, BodyTooLargeError, GatewayError, NotFoundError
from .protocol import parse_chat_request
from .streaming import ChatStream, unless_disconnected

logger = logging.getLogger(__name__)

Endpoint: TypeAlias = Callable[[Request], Awaitable[Response]]

MAX_BODY_BYTES = 16 * 1024 * 1024
CLIENT_CLOSED_REQUEST = 499
ROLLOUT_PREFIX = "/rollout/{rollout_id}/attempt/{attempt_id}"


def create_app(service: ChatService, *, api_key: str | None = None, max_body_bytes: int = MAX_BODY_BYTES) -> FastAPI:
    """The ASGI application.

    Args:
        service: answers the requests.
        api_key: bearer token that every request but /health must carry; None lets everybody in.
        max_body_bytes: larger request bodies are refused with status 413.
    """
    app = FastAPI(title="mini-agentic-rl gateway", docs_url=None, redoc_url=None, openapi_url=None)

    def check_key(request: Request) -> None:
        if api_key is None:
            return
        given = request.headers.get("authorization", "")
        if not hmac.compare_digest(given.encode(), f"Bearer {api_key}".encode()):
            raise AuthenticationError(
                "wrong or missing API key: send it as 'Authorization: Bearer KEY'", code="invalid_api_key"
            )

    async def chat_completions(request: Request) -> Response:
        check_key(request)
        chat = parse_chat_request(await _body(request, max_body_bytes))
        turn = await service.prepare(chat, _scope(request), request.headers.get("traceparent"))
        if chat.stream:
            stream = ChatStream(service, turn, request.receive)
            await stream.begin()
            return stream
        if not await unless_disconnected(service.run(turn), request.receive):
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        return _json(service.response(turn))

    async def models(request: Request) -> Response:
        check_key(request)
        return _json({"object": "list", "data": [_model(service, name) for name in service.models]})

    async def model(request: Request) -> Response:
        check_key(request)
        name = request.path_params["model"]
        if name not in service.models:
            raise NotFoundError(f"there is no model {name!r} here", param="model", code="model_not_found")
        return _json(_model(service, name))

    async def health(request: Request) -> Response:
        return _json(
            {
                "status": "ok",
                "model": service.model_name,
                "models": service.models,
                "context_length": service.backend.context_length,
                "requests": vars(service.counters),
                "conversations": service.memory.counters(),
            }
        )

    for prefix in ("", ROLLOUT_PREFIX):
        app.add_route(f"{prefix}/v1/chat/completions", _guarded(chat_completions), methods=["POST"])
        app.add_route(f"{prefix}/v1/models", _guarded(models), methods=["GET"])
        app.add_route(f"{prefix}/v1/models/{{model:path}}", _guarded(model), methods=["GET"])
        app.add_route(f"{prefix}/health", _guarded(health), methods=["GET"])
        app.add_route(f"{prefix}/v1/health", _guarded(health), methods=["GET"])

    app.add_exception_handler(HTTPException, _no_such_path)
    return app


def _scope(request: Request) -> tuple[str, str] | None:
    rollout_id = request.path_params.get("rollout_id")
    return None if rollout_id is None else (rollout_id, request.path_params["attempt_id"])


async def _body(request: Request, limit: int) -> bytes:
    parts = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > limit:
            raise BodyTooLargeError(f"the request's body exceeds {limit} bytes")
        parts.append(part)
    return b"".join(parts)


def _model(service: ChatService, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": 0,
        "owned_by": "mini-agentic-rl",
        "max_model_len": service.backend.context_length,
    }


def _json(value: dict[str, Any]) -> Response:
    return Response(responses.encode(value), media_type="application/json")


def _guarded(endpoint: Endpoint) -> Endpoint:
    """The endpoint with every failure turned into OpenAI's error shape."""

    async def call(request: Request) -> Response:
        try:
            return await endpoint(request)
        except GatewayError as error:
            return _refusal(error)
        except ClientDisconnect:
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        except Exception:  # a fault of ours or of the backend must end this answer, not the server
            logger.exception("%s %s failed", request.method, request.url.path)
            return _refusal(GatewayError("the server failed to answer; its log says why"))

    return call


def _refusal(error: GatewayError) -> Response:
    return Response(
        responses.encode(error.body()), error.status, headers=error.headers(), media_type="application/json"
    )


async def _no_such_path(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    refusal = GatewayError(f"{request.method} {request.url.path} is not served here", kind="invalid_request_error")
    return Response(responses.encode(refusal.body()), status, media_type="application/json")
