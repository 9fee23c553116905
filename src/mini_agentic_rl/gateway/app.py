"""The HTTP face of the gateway: every dialect's path, once plain and once under each attempt's own URL."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response

from .completion.sample import ChatService
from .completion.stream import ChatStream, unless_disconnected
from .dialects import Dialect, all_dialects
from .dialects.base import json_object
from .dialects.chat import parse_chat_request
from .http import Endpoint, add_dialect, add_health, add_models, body_of, gone, json_response, new_app, scope_of
from .limits import Gate
from .metrics import TOKENS_HELP, Family, GatewayMetrics


def create_app(service: ChatService, gate: Gate) -> Starlette:
    """The ASGI application.

    Args:
        service: answers the requests.
        gate: lets them in.
    """
    app = new_app()
    metrics = GatewayMetrics(gate, lambda: _counted(service), lambda: _measured(service))

    def serving(dialect: Dialect) -> Endpoint:
        async def serve(request: Request) -> Response:
            scope = scope_of(request)
            exchange = dialect.open(json_object(await body_of(request, gate.limits.max_body_bytes)), scope)
            chat = parse_chat_request(exchange.chat)
            if gate.paused and not await unless_disconnected(gate.opened(), request.receive):
                return gone()
            turn = await service.prepare(chat, scope, request.headers.get("traceparent"))
            if chat.stream:
                stream = ChatStream(service, turn, exchange, request.receive)
                await stream.begin()
                return stream
            if not await unless_disconnected(service.run(turn), request.receive):
                return gone()
            return json_response(exchange.answer(service.response(turn)))

        return serve

    def count(chat: dict[str, Any]) -> int:
        return service.count(parse_chat_request(chat))

    def facts() -> dict[str, Any]:
        return {
            "model": service.model_name,
            "models": service.models,
            "context_length": service.backend.context_length,
            "requests": vars(service.counters),
            "conversations": service.memory.counters(),
        }

    for dialect in all_dialects():
        add_dialect(app, dialect, serving(dialect), gate, metrics, count)
    about = {"owned_by": "mini-agentic-rl", "max_model_len": service.backend.context_length}
    add_models(app, gate, lambda: service.models, about)
    add_health(app, gate, metrics, facts)
    return app


_NOW = ("attempts", "tokens")
"""What `ConversationMemory.counters` tells of the present; the rest only ever grows; `forked` is a sum of others."""


def _counted(service: ChatService) -> Iterable[Family]:
    counters, conversations = service.counters, service.memory.counters()
    tokens = {
        "prompt": counters.prompt_tokens,
        "cached": counters.cached_tokens,
        "completion": counters.completion_tokens,
    }
    prompts = {kind: count for kind, count in conversations.items() if kind not in (*_NOW, "forked")}
    yield Family.by_kind("tokens", TOKENS_HELP, tokens)
    yield Family.by_kind("prompts", "Prompts that began, continued or forked a conversation, and why.", prompts)


def _measured(service: ChatService) -> Iterable[Family]:
    load = service.backend.load()
    remembered = {kind: count for kind, count in service.memory.counters().items() if kind in _NOW}
    yield Family.by_kind("sequences", "Answers being sampled, and waiting for their turn.", load.sequences)
    yield Family.by_kind("kv_blocks", "Blocks of the key/value cache: in use, kept for reuse, free.", load.kv_blocks)
    yield Family.by_kind("remembered", "Attempts whose conversations are remembered, and their tokens.", remembered)
