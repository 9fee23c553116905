"""The gateway over the policy as an ASGI application: every dialect, plain and under each attempt's own URL."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response

from ...http import (
    Admission,
    BodyTooLargeError,
    Endpoint,
    MetricFamily,
    RequestLimits,
    encode_in_steps,
    new_app,
    off_loop,
    openai_response,
    read_json,
    unless_disconnected,
)
from ..caller import Caller, SessionGate, caller_of
from ..completion import ChatService, ChatStream, answer_size, whole_answer
from ..dialects import (
    CallScope,
    ChatRequest,
    CompletionsDialect,
    Dialect,
    Exchange,
    parse_chat_request,
    shared_dialects,
)
from ..errors import BodyBeyondContextError
from .routes import (
    TOKENS_HELP,
    IgnoredParameters,
    add_dialect,
    add_health,
    add_models,
    gateway_metrics,
)

_ABOUT = (
    "An OpenAI-compatible endpoint on a model in this process: set a client's base_url to this address with /v1. Calls "
    "under /rollout/ID/attempt/ID/v1 are recorded for training. Where keys are set, requests carry 'Authorization: "
    "Bearer KEY' or 'x-api-key: KEY'."
)

T = TypeVar("T")

_BYTES_PER_TOKEN: Final = 16
"""More than a token stands for on the mean, in JSON: Chinese in escapes of six bytes comes closest, with about ten."""
_BYTES_BESIDE: Final = 64 * 1024
"""For what is no part of the prompt: sampling settings, metadata, a schema of the answer."""


def create_app(service: ChatService, admission: Admission, sessions: SessionGate | None = None) -> Starlette:
    """Return the ASGI application.

    Args:
        service: answers the requests.
        admission: lets them in.
        sessions: knows the sessions that requests belong to; None where there are none.
    """
    app = new_app(openai_response, admission.keys, title="mini-agentic-rl gateway", about=_ABOUT)
    preparation = service.preparation
    ignored = IgnoredParameters()
    metrics = gateway_metrics(admission, lambda: _counted(service), lambda: _measured(service))

    def serving(dialect: Dialect) -> Endpoint:
        async def serve(request: Request) -> Response:
            key, caller = admission.keys.check(request.headers), await callers(request)

            def read(body: dict[str, Any]) -> tuple[Exchange, ChatRequest, list[str]]:
                exchange = dialect.open(body, caller.scope, key)
                return exchange, parse_chat_request(exchange.chat), dialect.left_out(body)

            exchange, chat, left_out = await _read(request, admission.limits, read, service.sampler.context_length)
            if admission.paused:
                await unless_disconnected(admission.opened(), request.receive)
            prepared = await unless_disconnected(preparation.make(chat, caller, key), request.receive)
            headers = ignored.headers([*left_out, *prepared.left_out])
            if chat.stream:
                stream = ChatStream(service, prepared, exchange, request.receive, headers, dialect.counts_first)
                await stream.begin()
                return stream
            await unless_disconnected(service.run(prepared), request.receive)

            def told() -> Response:
                body = encode_in_steps(exchange.answer(whole_answer(service, prepared)))
                return Response(body, headers=headers, media_type="application/json")

            return await off_loop(answer_size(prepared), told)

        return serve

    async def callers(request: Request) -> Caller:
        caller = caller_of(request, service.store is not None)
        key = admission.keys.check(request.headers)
        return caller if sessions is None else await sessions.caller(request, key, caller)

    async def count(request: Request, chat_of: Callable[[dict[str, Any]], dict[str, Any]]) -> int:
        def read(body: dict[str, Any]) -> ChatRequest:
            return parse_chat_request(chat_of(body))

        return await preparation.count(await _read(request, admission.limits, read, service.sampler.context_length))

    def about() -> dict[str, Any]:
        return {
            "model": service.model_name,
            "models": preparation.models,
            "context_length": service.sampler.context_length,
            "requests": vars(service.counters),
            "conversations": service.memory.counters(),
        }

    dialects = [*shared_dialects(), CompletionsDialect()]
    for dialect in dialects:
        add_dialect(app, dialect, serving(dialect), admission, metrics, callers, count)

    def forget(scope: CallScope, key: str) -> None:
        service.memory.forget(scope)
        for dialect in dialects:
            dialect.forget(scope, key)

    if sessions is not None:
        sessions.add_routes(app, admission, metrics, forget)
    model_facts = {"owned_by": "mini-agentic-rl", "max_model_len": service.sampler.context_length}
    add_models(app, admission, metrics, lambda: preparation.models, model_facts)
    add_health(app, admission, metrics, about)
    return app


async def _read(request: Request, limits: RequestLimits, read: Callable[[dict[str, Any]], T], context_length: int) -> T:
    """Return what `read` makes of the JSON object in the body, which is not read where no prompt that fits is so long.

    Args:
        request: its body has not been read yet.
        limits: bound it.
        read: makes something of the object; called in some thread.
        context_length: tokens that the model may see.

    Raises:
        HttpError: as `read_json` and `read` do; a BodyBeyondContextError where the prompt cannot fit.
    """
    bound = min(limits.max_body_bytes, context_length * _BYTES_PER_TOKEN + _BYTES_BESIDE)
    try:
        return await read_json(request, bound, read, within_seconds=limits.max_body_seconds)
    except BodyTooLargeError:
        declared = request.headers.get("content-length", "")
        if bound == limits.max_body_bytes:
            raise
        if declared.isascii() and declared.isdecimal() and int(declared) > limits.max_body_bytes:
            raise BodyTooLargeError(limits.max_body_bytes) from None
        raise BodyBeyondContextError(bound, context_length) from None


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
    load = service.sampler.load()
    remembered = {kind: count for kind, count in service.memory.counters().items() if kind in _NOW}
    yield MetricFamily.by_kind("sequences", "Answers being sampled, and waiting for their turn.", load.sequences)
    yield MetricFamily.by_kind(
        "kv_blocks", "Blocks of the key/value cache: in use, kept for reuse, free.", load.kv_blocks
    )
    yield MetricFamily.by_kind(
        "remembered", "Attempts whose conversations are remembered, and their tokens.", remembered
    )
