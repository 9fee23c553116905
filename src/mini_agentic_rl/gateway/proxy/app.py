"""The HTTP face of `LLMProxy`: chat requests go to their upstream and come back unchanged, and are recorded on the way.

An answer is recorded before it is complete at the agent. Where the upstream tells token ids and log-probabilities they
are part of the record and the call can be trained; where it does not, the record holds the messages alone.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import httpx
from fastapi import FastAPI, Request
from starlette.responses import Response, StreamingResponse

from mini_agentic_rl.store.base import LightningStore

from ..dialects import Dialect, Exchange, all_dialects
from ..dialects.base import json_object
from ..errors import BadRequestError, GatewayError, NotFoundError, UnavailableError
from ..http import MAX_BODY_BYTES, Endpoint, add_route, body_of, check_key, json_response, new_app, scope_of
from ..recorder import Answer, CallContext, Recorder
from .answer import UpstreamAnswer
from .upstream import Upstream, Upstreams, events

logger = logging.getLogger(__name__)


class ProxiedCall:
    """One chat request on its way."""

    def __init__(
        self, exchange: Exchange, scope: tuple[str, str] | None, upstream: Upstream, trace: str | None
    ) -> None:
        self.exchange = exchange
        self.body = exchange.chat
        self.scope = scope
        self.upstream = upstream
        self.traceparent = trace
        self.start_time = time.time()
        self.answer = UpstreamAnswer()

    @property
    def streams(self) -> bool:
        """Whether the agent asked for a stream."""
        return bool(self.body.get("stream"))

    @property
    def temperature(self) -> float:
        """What the tokens are drawn at; 1 where the agent did not say."""
        asked = self.body.get("temperature")
        return 1.0 if asked is None else float(asked)

    @property
    def onward(self) -> dict[str, Any]:
        """The body as the upstream gets it."""
        body = {**self.body, "model": self.upstream.model}
        if self.scope is not None and self.upstream.token_ids:
            body |= {"return_token_ids": True, "logprobs": True}
        return body


def create_proxy_app(
    upstreams: Upstreams,
    store: Callable[[], LightningStore | None],
    *,
    api_key: str | None = None,
    max_body_bytes: int = MAX_BODY_BYTES,
) -> FastAPI:
    """The ASGI application.

    Args:
        upstreams: the servers to ask; closed when the application ends.
        store: tells where calls under a rollout's URL are recorded.
        api_key: bearer token that every request but /health must carry; None lets everybody in.
        max_body_bytes: larger request bodies are refused with status 413.
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await upstreams.close()

    app = new_app("mini-agentic-rl proxy", lifespan)

    def serving(dialect: Dialect) -> Endpoint:
        async def serve(request: Request) -> Response:
            check_key(request, api_key)
            scope = scope_of(request)
            exchange = dialect.open(json_object(await body_of(request, max_body_bytes)), scope)
            call = _read(exchange, request, upstreams)
            recorder = store()
            if scope is not None and recorder is None:
                raise NotFoundError("this proxy records no rollouts: give it a store", code="no_store")
            answer = await upstreams.send(call.upstream, "/chat/completions", call.onward)
            if answer.is_error:
                return await _hand_on(answer)
            if call.streams:
                return StreamingResponse(_stream(call, answer, recorder), media_type="text/event-stream")
            completion = await _whole(call, answer)
            await _record(call, recorder)
            return json_response(exchange.answer(completion))

        return serve

    async def models(request: Request) -> Response:
        check_key(request, api_key)
        rows = [{"id": name, "object": "model", "created": 0, "owned_by": "upstream"} for name in upstreams.names]
        return json_response({"object": "list", "data": rows})

    async def health(request: Request) -> Response:
        return json_response({"status": "ok", "models": upstreams.names})

    for dialect in all_dialects():
        add_route(app, dialect.path, serving(dialect), "POST", dialect.refusal)
    add_route(app, "/v1/models", models, "GET")
    add_route(app, "/health", health, "GET")
    add_route(app, "/v1/health", health, "GET")
    return app


def _read(exchange: Exchange, request: Request, upstreams: Upstreams) -> ProxiedCall:
    body = exchange.chat
    if not isinstance(body.get("messages"), list):
        raise BadRequestError("messages: expected a list", param="messages")
    if not isinstance(body.get("temperature"), int | float | None):
        raise BadRequestError("temperature: expected a number", param="temperature")
    upstream = upstreams.find(str(body.get("model")))
    return ProxiedCall(exchange, scope_of(request), upstream, request.headers.get("traceparent"))


async def _whole(call: ProxiedCall, answer: httpx.Response) -> dict[str, Any]:
    """The upstream's answer in one piece."""
    try:
        content = await answer.aread()
    except httpx.TransportError as error:
        raise UnavailableError(f"{call.upstream.base_url} broke off its answer: {error}") from error
    finally:
        await answer.aclose()
    try:
        completion = json_object(content)
    except BadRequestError as error:
        raise UnavailableError(f"{call.upstream.base_url} answered what is no JSON object") from error
    call.answer.take(completion)
    return completion


async def _hand_on(answer: httpx.Response) -> Response:
    """An upstream's refusal, as it is."""
    try:
        content = await answer.aread()
    finally:
        await answer.aclose()
    return Response(content, answer.status_code, media_type=answer.headers.get("content-type"))


async def _stream(call: ProxiedCall, answer: httpx.Response, store: LightningStore | None) -> AsyncIterator[bytes]:
    """The upstream's events, one by one; the record is stored before the last one."""
    recorded = False
    try:
        async for chunk in events(answer):
            call.answer.take(chunk)
            yield call.exchange.events(chunk)
        recorded = True
        await _record(call, store)
        yield call.exchange.end()
    except httpx.TransportError as error:
        yield call.exchange.failed(UnavailableError(f"{call.upstream.base_url} broke off its answer: {error}"))
    except GatewayError as error:
        yield call.exchange.failed(error)
    finally:
        await asyncio.shield(_end(call, answer, store, recorded))


async def _end(call: ProxiedCall, answer: httpx.Response, store: LightningStore | None, recorded: bool) -> None:
    """Close the upstream's answer, and keep what had come of one that was broken off."""
    await answer.aclose()
    if not recorded and call.answer.choices:
        for choice in call.answer.choices.values():
            choice.finish_reason = choice.finish_reason or "cancelled"
        with suppress(GatewayError):  # logged already, and nobody is left to be told
            await _record(call, store)


async def _record(call: ProxiedCall, store: LightningStore | None) -> None:
    if call.scope is None or store is None:
        return
    answer = call.answer
    context = CallContext(
        rollout_id=call.scope[0],
        attempt_id=call.scope[1],
        response_id=answer.response_id,
        model=call.upstream.name,
        messages=call.body["messages"],
        tools=call.body.get("tools") or [],
        prompt_ids=answer.prompt_ids,
        temperature=call.temperature,
        start_time=call.start_time,
        traceparent=call.traceparent,
    )
    for index, choice in answer.choices.items():
        told = Answer(
            index=index,
            message=choice.message,
            finish_reason=choice.finish_reason or "cancelled",
            token_ids=choice.token_ids,
            logprobs=choice.logprobs,
        )
        await Recorder(store).record(context, told, time.time())
