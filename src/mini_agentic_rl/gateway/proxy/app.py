"""The HTTP face of `LLMProxy`: requests in every dialect go to an upstream, and are recorded on the way back."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from ...store import LightningStore
from ..completion.stream import unless_disconnected
from ..dialects import Dialect, all_dialects
from ..dialects.base import json_object
from ..errors import GatewayError, NotFoundError
from ..http import (
    Endpoint,
    EventStream,
    add_dialect,
    add_health,
    add_models,
    body_of,
    gone,
    json_response,
    new_app,
    scope_of,
)
from ..limits import Gate, RolloutBudgets
from ..metrics import TOKENS_HELP, Family, GatewayMetrics
from .call import ProxiedCall
from .upstreams import Upstreams

logger = logging.getLogger(__name__)


def create_proxy_app(upstreams: Upstreams, store: Callable[[], LightningStore | None], gate: Gate) -> Starlette:
    """The ASGI application.

    Args:
        upstreams: the servers to ask; closed when the application ends.
        store: tells where calls under a rollout's URL are recorded.
        gate: lets requests in.
    """

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        await upstreams.close()

    app = new_app(lifespan)
    budgets = RolloutBudgets(gate.limits, store)
    tokens: Counter[str] = Counter()
    metrics = GatewayMetrics(gate, lambda: _counted(upstreams, tokens), lambda: _measured(upstreams))

    def serving(dialect: Dialect) -> Endpoint:
        async def serve(request: Request) -> Response:
            scope = scope_of(request)
            exchange = dialect.open(json_object(await body_of(request, gate.limits.max_body_bytes)), scope)
            recorder = store()
            if scope is not None and recorder is None:
                raise NotFoundError(
                    "this proxy records no rollouts: ask it at /v1, or give it a store", code="no_store"
                )
            call = ProxiedCall(exchange, scope, request.headers.get("traceparent"), recorder, budgets)
            if gate.paused and not await unless_disconnected(gate.opened(), request.receive):
                return gone()
            finished = _Finished(call, tokens)
            if call.streams:
                try:
                    sent = await unless_disconnected(call.send(upstreams), request.receive)
                except GatewayError:
                    await finished()
                    raise
                return ProxiedStream(call, finished) if sent else gone()
            answers = []

            async def ask() -> None:
                await call.send(upstreams)
                answers.append(exchange.answer(await call.whole()))

            try:
                done = await unless_disconnected(ask(), request.receive)
            finally:
                await finished()
            return json_response(answers[0]) if done else gone()

        return serve

    for dialect in all_dialects():
        add_dialect(app, dialect, serving(dialect), gate, metrics)
    add_models(app, gate, lambda: upstreams.names, {"owned_by": "upstream"})
    add_health(app, gate, metrics, lambda: {"models": upstreams.names})
    return app


class _Finished:
    """Ends a call once: what is left of its answer is closed, its tokens are counted."""

    def __init__(self, call: ProxiedCall, tokens: Counter[str]) -> None:
        self._call = call
        self._tokens = tokens

    async def __call__(self) -> None:
        await self._call.end()
        prompt, cached, sampled = self._call.answer.tokens
        self._tokens.update({"prompt": prompt, "cached": cached, "completion": sampled})


class ProxiedStream(EventStream):
    """The events of one call as a response; when the client goes away, the upstream's answer is closed."""

    def __init__(self, call: ProxiedCall, finished: _Finished) -> None:
        super().__init__()
        self._call = call
        self._finished = finished

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await StreamingResponse(self._events(), media_type="text/event-stream")(scope, receive, send)

    async def _events(self) -> AsyncIterator[bytes]:
        try:
            async for events in self._call.stream():
                if events:
                    yield events
        except GatewayError as error:
            self.failed = True
            yield self._call.exchange.failed(error)
        except Exception:  # a fault of ours must end this answer, not the server
            logger.exception("a streamed call failed")
            self.failed = True
            yield self._call.exchange.failed(GatewayError("the proxy failed to answer; its log says why"))
        finally:
            await asyncio.shield(self._finished())


def _counted(upstreams: Upstreams, tokens: Counter[str]) -> Iterable[Family]:
    yield Family.by_kind("tokens", TOKENS_HELP, {kind: tokens[kind] for kind in ("prompt", "cached", "completion")})
    yield Family("upstream_tries", "Requests sent on, by server and outcome.", upstreams.sent, ("server", "outcome"))


def _measured(upstreams: Upstreams) -> Iterable[Family]:
    up: dict[tuple[str, ...], float] = {(server,): value for server, value in upstreams.replicas.up().items()}
    yield Family("upstream_up", "Whether a server is taken to be there.", up, ("server",))
