"""`LLMProxy` as an ASGI application: requests in every dialect go to an upstream, and are recorded on the way back."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from ...http import (
    LARGE,
    Admission,
    Endpoint,
    EventStream,
    HttpError,
    MetricFamily,
    encode_in_steps,
    new_app,
    off_loop,
    openai_response,
    read_json,
    size_of,
    unless_disconnected,
)
from ...store import LightningStore
from ..caller import Caller, SessionGate, caller_of
from ..completion import KnownAttempts
from ..dialects import CallScope, ChatDialect, Dialect, shared_dialects
from ..errors import NotFoundError
from ..http.routes import TOKENS_HELP, IgnoredParameters, add_dialect, add_health, add_models, gateway_metrics
from ..limits import RolloutBudgets
from .call import ProxiedCall
from .upstreams import Upstreams

logger = logging.getLogger(__name__)

_ABOUT = (
    "An OpenAI-compatible endpoint that passes calls on to other servers: set a client's base_url to this address with "
    "/v1. Calls under /rollout/ID/attempt/ID/v1 are recorded for training. Where keys are set, requests carry "
    "'Authorization: Bearer KEY' or 'x-api-key: KEY'."
)


def create_proxy_app(
    upstreams: Upstreams,
    store: Callable[[], LightningStore | None],
    admission: Admission,
    budgets: RolloutBudgets,
    sessions: SessionGate | None = None,
) -> Starlette:
    """Return the ASGI application.

    Args:
        upstreams: the servers to ask; closed when the application ends.
        store: tells where calls under a rollout's URL are recorded.
        admission: lets requests in.
        budgets: bound what each attempt may ask for.
        sessions: knows the sessions that requests belong to; None where there are none.
    """

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        await upstreams.close()

    app = new_app(openai_response, admission.keys, title="mini-agentic-rl proxy", about=_ABOUT, lifespan=lifespan)
    limits = admission.limits
    tokens: Counter[str] = Counter()
    metrics = gateway_metrics(admission, lambda: _counted(upstreams, tokens), lambda: _measured(upstreams))

    ignored = IgnoredParameters()
    attempts: list[KnownAttempts] = []

    def known_to(recorder: LightningStore) -> KnownAttempts:
        if not attempts or attempts[0].store is not recorder:  # the proxy was given another one
            attempts[:] = [KnownAttempts(recorder)]
        return attempts[0]

    async def callers(request: Request) -> Caller:
        caller = caller_of(request, store() is not None)
        key = admission.keys.check(request.headers)
        return caller if sessions is None else await sessions.caller(request, key, caller)

    def serving(dialect: Dialect) -> Endpoint:
        async def serve(request: Request) -> Response:
            recorder = store()
            key, caller = admission.keys.check(request.headers), await callers(request)
            exchange, left_out = await read_json(
                request,
                limits.max_body_bytes,
                lambda body: (dialect.open(body, caller.scope, key), dialect.left_out(body)),
                within_seconds=limits.max_body_seconds,
            )
            # A chat request goes on as it is.
            headers = {} if isinstance(dialect, ChatDialect) else ignored.headers(left_out)
            if caller.scope is not None and recorder is None:
                raise NotFoundError(
                    "this proxy records no rollouts: ask it at /v1, or give it a store", code="no_store"
                )
            if recorder is not None:
                await known_to(recorder).check(caller.scope)
            call = ProxiedCall(exchange, caller, recorder, budgets, tokens)
            if admission.paused:
                await unless_disconnected(admission.opened(), request.receive)
            if call.streams:
                try:
                    await unless_disconnected(call.send(upstreams), request.receive)
                except HttpError:
                    await call.end()
                    raise
                return ProxiedStream(call, headers)

            async def ask() -> Response:
                await call.send(upstreams)
                completion = await call.whole()
                size = size_of([exchange.chat, completion], LARGE)  # a dialect may keep the conversation
                body = await off_loop(size, lambda: encode_in_steps(exchange.answer(completion)))
                return Response(body, headers=headers, media_type="application/json")

            try:
                return await unless_disconnected(ask(), request.receive)
            finally:
                await call.end()

        return serve

    dialects = shared_dialects()
    for dialect in dialects:
        add_dialect(app, dialect, serving(dialect), admission, metrics, callers)

    def forget(scope: CallScope, key: str) -> None:
        for dialect in dialects:
            dialect.forget(scope, key)

    if sessions is not None:
        sessions.add_routes(app, admission, metrics, forget)
    add_models(app, admission, metrics, lambda: upstreams.names, {"owned_by": "upstream"})
    add_health(app, admission, metrics, lambda: {"models": upstreams.names})
    return app


class ProxiedStream(EventStream):
    """The events of one call as a response; when the client goes away, the upstream's answer is closed."""

    def __init__(self, call: ProxiedCall, headers: Mapping[str, str]) -> None:
        super().__init__()
        self._call = call
        self._further = headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        stream = StreamingResponse(self._events(), headers=self._further, media_type="text/event-stream")
        await stream(scope, receive, send)

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
            await asyncio.shield(self._call.end())


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
