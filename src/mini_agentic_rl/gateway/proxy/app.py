"""`LLMProxy` as an ASGI application: requests in every dialect go to an upstream, and are recorded on the way back."""

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

from ...http import (
    Admission,
    Endpoint,
    EventStream,
    HttpError,
    MetricFamily,
    client_gone,
    json_object,
    json_response,
    new_app,
    openai_response,
    read_body,
    unless_disconnected,
)
from ...store import LightningStore
from ..dialects import Dialect, all_dialects
from ..errors import NotFoundError
from ..http.routes import TOKENS_HELP, add_dialect, add_health, add_models, gateway_metrics, scope_of
from ..limits import RolloutBudgets
from .call import ProxiedCall
from .upstreams import Upstreams

logger = logging.getLogger(__name__)


def create_proxy_app(
    upstreams: Upstreams, store: Callable[[], LightningStore | None], admission: Admission, budgets: RolloutBudgets
) -> Starlette:
    """Return the ASGI application.

    Args:
        upstreams: the servers to ask; closed when the application ends.
        store: tells where calls under a rollout's URL are recorded.
        admission: lets requests in.
        budgets: bound what each attempt may ask for.
    """

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        await upstreams.close()

    app = new_app(openai_response, lifespan=lifespan)
    tokens: Counter[str] = Counter()
    metrics = gateway_metrics(admission, lambda: _counted(upstreams, tokens), lambda: _measured(upstreams))

    def serving(dialect: Dialect) -> Endpoint:
        async def serve(request: Request) -> Response:
            scope = scope_of(request)
            exchange = dialect.open(json_object(await read_body(request, admission.limits.max_body_bytes)), scope)
            recorder = store()
            if scope is not None and recorder is None:
                raise NotFoundError(
                    "this proxy records no rollouts: ask it at /v1, or give it a store", code="no_store"
                )
            call = ProxiedCall(exchange, scope, request.headers.get("traceparent"), recorder, budgets)
            if admission.paused and not await unless_disconnected(admission.opened(), request.receive):
                return client_gone()
            finished = _Finished(call, tokens)
            if call.streams:
                try:
                    sent = await unless_disconnected(call.send(upstreams), request.receive)
                except HttpError:
                    await finished()
                    raise
                return ProxiedStream(call, finished) if sent else client_gone()
            answers = []

            async def ask() -> None:
                await call.send(upstreams)
                answers.append(exchange.answer(await call.whole()))

            try:
                done = await unless_disconnected(ask(), request.receive)
            finally:
                await finished()
            return json_response(answers[0]) if done else client_gone()

        return serve

    for dialect in all_dialects():
        add_dialect(app, dialect, serving(dialect), admission, metrics)
    add_models(app, admission, lambda: upstreams.names, {"owned_by": "upstream"})
    add_health(app, admission, metrics, lambda: {"models": upstreams.names})
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
        except HttpError as error:
            self.failed = True
            yield self._call.exchange.failed(error)
        except Exception:  # a fault of ours must end this answer, not the server
            logger.exception("a streamed call failed")
            self.failed = True
            yield self._call.exchange.failed(HttpError("the proxy failed to answer; its log says why"))
        finally:
            await asyncio.shield(self._finished())


def _counted(upstreams: Upstreams, tokens: Counter[str]) -> Iterable[MetricFamily]:
    yield MetricFamily.by_kind(
        "tokens", TOKENS_HELP, {kind: tokens[kind] for kind in ("prompt", "cached", "completion")}
    )
    yield MetricFamily(
        "upstream_tries", "Requests sent on, by server and outcome.", upstreams.sent, ("server", "outcome")
    )


def _measured(upstreams: Upstreams) -> Iterable[MetricFamily]:
    up: dict[tuple[str, ...], float] = {(server,): value for server, value in upstreams.replicas.up().items()}
    yield MetricFamily("upstream_up", "Whether a server is taken to be there.", up, ("server",))
