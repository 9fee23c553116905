"""The HTTP face of the gateway: every dialect's path, once plain and once under each attempt's own URL."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request
from starlette.responses import Response

from .chat import ChatService
from .dialects import Dialect, all_dialects
from .dialects.base import json_object
from .errors import NotFoundError
from .http import (
    CLIENT_CLOSED_REQUEST,
    MAX_BODY_BYTES,
    Endpoint,
    add_route,
    body_of,
    check_key,
    json_response,
    new_app,
    scope_of,
)
from .protocol import parse_chat_request
from .streaming import ChatStream, unless_disconnected


def create_app(service: ChatService, *, api_key: str | None = None, max_body_bytes: int = MAX_BODY_BYTES) -> FastAPI:
    """The ASGI application.

    Args:
        service: answers the requests.
        api_key: bearer token that every request but /health must carry; None lets everybody in.
        max_body_bytes: larger request bodies are refused with status 413.
    """
    app = new_app("mini-agentic-rl gateway")

    def serving(dialect: Dialect) -> Endpoint:
        async def serve(request: Request) -> Response:
            check_key(request, api_key)
            scope = scope_of(request)
            exchange = dialect.open(json_object(await body_of(request, max_body_bytes)), scope)
            chat = parse_chat_request(exchange.chat)
            turn = await service.prepare(chat, scope, request.headers.get("traceparent"))
            if chat.stream:
                stream = ChatStream(service, turn, exchange, request.receive)
                await stream.begin()
                return stream
            if not await unless_disconnected(service.run(turn), request.receive):
                return Response(status_code=CLIENT_CLOSED_REQUEST)
            return json_response(exchange.answer(service.response(turn)))

        return serve

    async def models(request: Request) -> Response:
        check_key(request, api_key)
        return json_response({"object": "list", "data": [_model(service, name) for name in service.models]})

    async def model(request: Request) -> Response:
        check_key(request, api_key)
        name = request.path_params["model"]
        if name not in service.models:
            raise NotFoundError(f"there is no model {name!r} here", param="model", code="model_not_found")
        return json_response(_model(service, name))

    async def health(request: Request) -> Response:
        return json_response(
            {
                "status": "ok",
                "model": service.model_name,
                "models": service.models,
                "context_length": service.backend.context_length,
                "requests": vars(service.counters),
                "conversations": service.memory.counters(),
            }
        )

    for dialect in all_dialects():
        add_route(app, dialect.path, serving(dialect), "POST", dialect.refusal)
    add_route(app, "/v1/models", models, "GET")
    add_route(app, "/v1/models/{model:path}", model, "GET")
    add_route(app, "/health", health, "GET")
    add_route(app, "/v1/health", health, "GET")
    return app


def _model(service: ChatService, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": 0,
        "owned_by": "mini-agentic-rl",
        "max_model_len": service.backend.context_length,
    }
