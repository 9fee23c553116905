"""The HTTP face of the gateway: OpenAI's paths, once plain and once under each attempt's own URL."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request
from starlette.responses import Response

from .chat import ChatService
from .errors import NotFoundError
from .http import (
    CLIENT_CLOSED_REQUEST,
    MAX_BODY_BYTES,
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

    async def chat_completions(request: Request) -> Response:
        check_key(request, api_key)
        chat = parse_chat_request(await body_of(request, max_body_bytes))
        turn = await service.prepare(chat, scope_of(request), request.headers.get("traceparent"))
        if chat.stream:
            stream = ChatStream(service, turn, request.receive)
            await stream.begin()
            return stream
        if not await unless_disconnected(service.run(turn), request.receive):
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        return json_response(service.response(turn))

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

    add_route(app, "/v1/chat/completions", chat_completions, "POST")
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
