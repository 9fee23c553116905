"""The gateway over the policy as an ASGI application: every dialect, plain and under each attempt's own URL."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response

from ...http import (
    Admission,
    Endpoint,
    MetricFamily,
    client_gone,
    json_object,
    json_response,
    new_app,
    openai_response,
    read_body,
    unless_disconnected,
)
from ..completion import ChatService, ChatStream, whole_answer
from ..dialects import Dialect, all_dialects, parse_chat_request
from .routes import TOKENS_HELP, add_dialect, add_health, add_models, gateway_metrics, scope_of


def create_app(service: ChatService, admission: Admission) -> Starlette:
    """Return the ASGI application.

    Args:
        service: answers the requests.
        admission: lets them in.
    """
    app = new_app(openai_response)
    metrics = gateway_metrics(admission, lambda: _counted(service), lambda: _measured(service))

    def serving(dialect: Dialect) -> Endpoint:
        async def serve(request: Request) -> Response:
            scope = scope_of(request)
            exchange = dialect.open(json_object(await read_body(request, admission.limits.max_body_bytes)), scope)
            chat = parse_chat_request(exchange.chat)
            if admission.paused and not await unless_disconnected(admission.opened(), request.receive):
                return client_gone()
            prepared = await service.prepare(chat, scope, request.headers.get("traceparent"))
            if chat.stream:
                stream = ChatStream(service, prepared, exchange, request.receive)
                await stream.begin()
                return stream
            if not await unless_disconnected(service.run(prepared), request.receive):
                return client_gone()
            return json_response(exchange.answer(whole_answer(service, prepared)))

        return serve

    def count(chat: dict[str, Any]) -> int:
        return service.count(parse_chat_request(chat))

    def about() -> dict[str, Any]:
        return {
            "model": service.model_name,
            "models": service.models,
            "context_length": service.backend.context_length,
            "requests": vars(service.counters),
            "conversations": service.memory.counters(),
        }

    for dialect in all_dialects():
        add_dialect(app, dialect, serving(dialect), admission, metrics, count)
    model_facts = {"owned_by": "mini-agentic-rl", "max_model_len": service.backend.context_length}
    add_models(app, admission, lambda: service.models, model_facts)
    add_health(app, admission, metrics, about)
    return app


_NOW = ("attempts", "tokens")
"""Counters of `ConversationMemory` that tell of the present; the rest only ever grows; `forked` is a sum of others."""


def _counted(service: ChatService) -> Iterable[MetricFamily]:
    counters, conversations = service.counters, service.memory.counters()
    tokens = {
        "prompt": counters.prompt_tokens,
        "cached": counters.cached_tokens,
        "completion": counters.completion_tokens,
    }
    prompts = {kind: count for kind, count in conversations.items() if kind not in (*_NOW, "forked")}
    yield MetricFamily.by_kind("tokens", TOKENS_HELP, tokens)
    yield MetricFamily.by_kind("prompts", "Prompts that began, continued or forked a conversation, and why.", prompts)


def _measured(service: ChatService) -> Iterable[MetricFamily]:
    load = service.backend.load()
    remembered = {kind: count for kind, count in service.memory.counters().items() if kind in _NOW}
    yield MetricFamily.by_kind("sequences", "Answers being sampled, and waiting for their turn.", load.sequences)
    yield MetricFamily.by_kind(
        "kv_blocks", "Blocks of the key/value cache: in use, kept for reuse, free.", load.kv_blocks
    )
    yield MetricFamily.by_kind(
        "remembered", "Attempts whose conversations are remembered, and their tokens.", remembered
    )
