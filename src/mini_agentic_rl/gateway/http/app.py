"""The ASGI application of both gateways: the same steps for every request, in every dialect.

    authenticate    the admission checks the key; `caller_of` reads the attempt
    parse           the dialect translates the body to a chat request, in a thread if the body is large
    begin           the backend (`Backend`) renders the request, applies its limits, and begins to sample, or refuses
    answer          whole, or as server-sent events (`AnswerStream`), in the dialect; the backend has recorded it

Each dialect is served at its own path and below the URL of each attempt, `/rollout/{rollout_id}/attempt/{attempt_id}`.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any, Final, Protocol, TypeVar

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from ...attribution import read_baggage
from ...http import (
    METRICS_CONTENT_TYPE,
    Admission,
    AdmittedEndpoint,
    BadRequestError,
    BodyTooLargeError,
    Endpoint,
    EventStream,
    HttpError,
    MetricFamily,
    RequestMetrics,
    json_response,
    new_app,
    openai_response,
    read_json,
    unless_disconnected,
)
from ...plugins import load_part
from ...store import LightningStore
from ..dialects import Caller, CallScope, ChatRequest, Dialect, Exchange, Lookup, parse_chat_request
from ..errors import BeyondContextError, UnknownModelError, UnnamedCallError
from ..settings import GatewayLimits, SessionSettings

logger = logging.getLogger(__name__)

T = TypeVar("T")
Json = dict[str, Any]

_PREFIXES: Final = ("", "/rollout/{rollout_id}/attempt/{attempt_id}")
_ANTHROPIC: Final = "anthropic-version"
"""Header of all requests of Anthropic's clients."""
_MAX_NAMES: Final = 32
_LONGEST_NAME: Final = 80
_MAX_LOGGED: Final = 1000
_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
_EVENT_HEADERS: Final = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
_BYTES_PER_TOKEN: Final = 16
"""Upper bound of the mean bytes of JSON per token; Chinese in escapes of six bytes has about ten."""
_OTHER_BYTES: Final = 64 * 1024
"""For fields beside the prompt: sampling settings, metadata, a schema of the answer."""
_USAGE: Final = (
    "set a client's base_url to this address with /v1. Calls under /rollout/ID/attempt/ID/v1 are recorded for "
    "training. Where keys are set, requests carry 'Authorization: Bearer KEY' or 'x-api-key: KEY'."
)


class Call(Protocol):
    """A request that a backend answers: `whole` or `events`, and finally `end` in any case."""

    @property
    def streams(self) -> bool:
        """True if the client asked for a stream."""

    @property
    def left_out(self) -> Sequence[str]:
        """Fields of the request that have no effect."""

    async def whole(self) -> bytes:
        """Return the body of the whole answer, which has been recorded; raises a HttpError if it failed."""

    def events(self) -> AsyncGenerator[bytes, None]:
        """Yield the server-sent events; the answer is recorded before the last. Raises a HttpError if it failed."""

    async def end(self) -> None:
        """Release the call, and record the beginning of an interrupted answer."""


class Backend(Protocol):
    """Answers the requests of a gateway, by sampling or by asking upstreams. Used from one event loop."""

    title: str
    about: str
    """Description of the server, for the page that browsers show."""
    owner: str
    """`owned_by` in the list of models."""

    @property
    def models(self) -> Sequence[str]:
        """Names of the served models."""

    @property
    def records(self) -> bool:
        """True if calls under a rollout's URL are recorded."""

    @property
    def context_length(self) -> int | None:
        """Context length in tokens; None if it is unknown."""

    @property
    def dialects(self) -> Sequence[Dialect]:
        """The served dialects."""

    @property
    def count(self) -> Callable[[ChatRequest], Awaitable[int]] | None:
        """Counts the prompt tokens of a chat request, or raises a HttpError; None if they are unknown."""

    def parse(self, dialect: Dialect, body: Json, exchange: Exchange) -> tuple[Any, Sequence[str]]:
        """Validate a chat request, in any thread; return it for `begin`, and the ignored fields of the body.

        Raises:
            BadRequestError: a field has a bad value; `param` names it.
        """

    async def begin(self, chat: Any, exchange: Exchange, caller: Caller, key: str) -> Call:
        """Begin to answer a request; raises a HttpError if it cannot be answered."""

    def forget(self, scope: CallScope) -> None:
        """Drop all memory of an attempt."""

    def facts(self) -> Json:
        """Return the facts that `/health` reports."""

    def metric_counters(self) -> Iterable[MetricFamily]:
        """Return metrics that never decrease."""

    def metric_gauges(self) -> Iterable[MetricFamily]:
        """Return metrics of the current state."""


class SessionGate(Protocol):
    """Sessions of deployed agents, an optional part (`apps.learning`). Used from one event loop."""

    async def caller(self, request: Request, key: str, caller: Caller) -> Caller:
        """Return `caller`, or the attempt of the session in the request's headers.

        Raises:
            HttpError: a header is malformed, or the session belongs to another key.
        """

    def add_routes(
        self,
        app: Starlette,
        admission: Admission,
        metrics: RequestMetrics,
        forget: Callable[[CallScope, str], None],
    ) -> None:
        """Add the routes of sessions. `forget` drops the memory of an attempt, given its scope and the API key."""


def create_app(
    backend: Backend,
    limits: GatewayLimits,
    *,
    api_keys: Sequence[str] = (),
    store: LightningStore | None = None,
    sessions: SessionSettings | None = None,
    close: Callable[[], Awaitable[None]] | None = None,
) -> tuple[Starlette, Admission]:
    """Return the ASGI application of a gateway, and its admission.

    Args:
        backend: answers the requests.
        limits: limits of requests.
        api_keys: keys that are accepted; without any no key is needed.
        store: keeps the sessions.
        sessions: settings of sessions of deployed agents; None keeps no sessions.
        close: called when the application ends.

    Raises:
        ValueError: sessions without a store.
    """
    if sessions is not None and store is None:
        raise ValueError("sessions are kept in a store: give one")
    admission = Admission(limits, api_keys, refuse_when_paused=limits.when_paused == "refuse")
    gate: SessionGate | None = None if sessions is None else load_part("learning").session_gate(store, sessions)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        if close is not None:
            await close()

    app = new_app(
        openai_response, admission.keys, title=backend.title, about=f"{backend.about}: {_USAGE}", lifespan=lifespan
    )
    metrics = _metrics(backend, admission)
    logged: set[str] = set()

    def add(method: str, path: str, endpoint: Endpoint, dialect: Dialect | None = None) -> None:
        name = "models" if dialect is None else path.rpartition("/v1/")[2]
        refuse = openai_response
        if dialect is not None:
            refuse = lambda error: json_response(dialect.refusal(error), error.status, error.headers)  # noqa: E731
        admitted = AdmittedEndpoint(name, endpoint, admission, metrics, refuse)
        for prefix in _PREFIXES:
            app.router.routes.append(Route(prefix + path, admitted, methods=[method]))

    async def identify(request: Request) -> tuple[str, Caller]:
        """Return the API key, which the admission has checked, and the caller."""
        key: str = request.state.api_key
        caller = caller_of(request, backend.records)
        return key, caller if gate is None else await gate.caller(request, key, caller)

    async def read(request: Request, parse: Callable[[Json], T]) -> T:
        """Return `parse` of the JSON object in the body, called in any thread; refuse a body that is too long for any
        prompt that fits into the context with a BeyondContextError."""
        bound, context_length = limits.max_body_bytes, backend.context_length
        if context_length is not None:
            bound = min(bound, context_length * _BYTES_PER_TOKEN + _OTHER_BYTES)
        try:
            return await read_json(request, bound, parse, within_seconds=limits.max_body_seconds)
        except BodyTooLargeError:
            if context_length is None or bound == limits.max_body_bytes:
                raise
            raise BeyondContextError(context_length, max_bytes=bound) from None

    def answering(dialect: Dialect) -> Endpoint:
        async def answer(request: Request) -> Response:
            key, caller = await identify(request)

            def parse(body: Json) -> tuple[Exchange, Any, Sequence[str]]:
                exchange = dialect.open(body, caller.scope, key)
                return exchange, *backend.parse(dialect, body, exchange)

            exchange, chat, left_out = await read(request, parse)
            if admission.paused:
                await unless_disconnected(admission.opened(), request.receive)
            call = await unless_disconnected(backend.begin(chat, exchange, caller, key), request.receive)
            headers = _ignored_header([*left_out, *call.left_out], logged)
            if call.streams:
                return AnswerStream(call, exchange, headers)
            try:
                body = await unless_disconnected(call.whole(), request.receive)
            finally:
                await call.end()
            return Response(body, headers=headers, media_type="application/json")

        return answer

    def looking_up(lookup: Lookup) -> Endpoint:
        async def look_up(request: Request) -> Response:
            key, caller = await identify(request)
            ids, query = request.path_params, request.query_params
            return await asyncio.to_thread(lambda: json_response(lookup(ids["id"], caller.scope, key, query)))

        return look_up

    def counting(dialect: Dialect, count_tokens: Callable[[ChatRequest], Awaitable[int]]) -> Endpoint:
        async def count(request: Request) -> Response:
            key, caller = await identify(request)

            def parse(body: Json) -> ChatRequest:
                return parse_chat_request(dialect.open({**body, **dialect.counting_fields}, caller.scope, key).chat)

            chat = await read(request, parse)
            return json_response({**dialect.counting_answer, "input_tokens": await count_tokens(chat)})

        return count

    for dialect in backend.dialects:
        add("POST", dialect.path, answering(dialect), dialect)
        for (method, path), lookup in dialect.lookups.items():
            add(method, path, looking_up(lookup), dialect)
        if dialect.counting_path and backend.count is not None:
            add("POST", dialect.counting_path, counting(dialect, backend.count), dialect)

    def forget(scope: CallScope, key: str) -> None:
        backend.forget(scope)
        for dialect in backend.dialects:
            dialect.forget(scope, key)

    if gate is not None:
        gate.add_routes(app, admission, metrics, forget)
    models, model = _model_endpoints(backend)
    add("GET", "/v1/models", models)
    add("GET", "/v1/models/{model:path}", model)
    _add_health(app, admission, metrics, backend)
    return app, admission


def caller_of(request: Request, records: bool) -> Caller:
    """Return the sender of a request: the attempt in the URL, or else in the `baggage` header.

    Args:
        request: the request.
        records: False ignores the header, on a server that records no rollouts.

    Raises:
        UnnamedCallError: it comes from a process that runs rollouts, and it is unknown to which of them it belongs.
        BadRequestError: the header has only one of rollout and attempt.
    """
    ids, headers = request.path_params, request.headers
    scope = (ids["rollout_id"], ids["attempt_id"]) if "rollout_id" in ids else None
    traceparent = headers.get("traceparent")
    baggage = headers.getlist("baggage")
    if not baggage:
        return Caller(scope, None, traceparent)
    named = read_baggage(baggage)
    if scope is None and records:
        if named.unnamed is not None:
            raise UnnamedCallError(named.unnamed)
        if (named.rollout_id is None) != (named.attempt_id is None):
            raise BadRequestError(
                "baggage: expected both a rollout id and an attempt id, or neither", code="rollout_unnamed"
            )
        if named.rollout_id is not None and named.attempt_id is not None:
            scope = (named.rollout_id, named.attempt_id)
    return Caller(scope, named.agent, traceparent)


class AnswerStream(EventStream):
    """The events of a call as a response; if the client leaves, the call is ended.

    Args:
        call: the call.
        exchange: translates errors to the dialect.
        headers: additional headers.
    """

    def __init__(self, call: Call, exchange: Exchange, headers: Mapping[str, str]) -> None:
        super().__init__()
        self._call = call
        self._exchange = exchange
        self._event_headers = [
            *_EVENT_HEADERS,
            *((name.lower().encode(), value.encode()) for name, value in headers.items()),
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self._event_headers})
            await unless_disconnected(self._send(send), receive)
        except ClientDisconnect:  # the client has gone
            pass
        finally:
            await asyncio.shield(self._call.end())

    async def _send(self, send: Send) -> None:
        async with aclosing(self._events()) as events:
            async for event in events:
                await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _events(self) -> AsyncGenerator[bytes, None]:
        error: HttpError | None = None
        try:
            async with aclosing(self._call.events()) as stream:
                async for events in stream:
                    if events:
                        yield events
        except HttpError as caught:
            error = caught
        except Exception:  # a bug must end this answer, not the server
            logger.exception("a streamed call failed")
            error = HttpError("the server failed to answer; its log says why")
        if error is not None:
            self.failed = True
            yield self._exchange.failed(error)


def _ignored_header(names: Sequence[str], logged: set[str]) -> dict[str, str]:
    """Return the header that names the ignored fields of a request; each is logged once."""
    if not names:
        return {}
    # names are untrusted, and headers are ASCII
    shown = [re.sub(r"[^ -+\--~]", "?", name)[:_LONGEST_NAME] for name in names[:_MAX_NAMES]]
    new = [name for name in shown if name not in logged]
    if new and len(logged) < _MAX_LOGGED:
        logged.update(new)
        logger.warning("requests ask for what has no effect here: %s", ", ".join(new))
    return {"X-Ignored-Parameters": ", ".join(shown)}


def _metrics(backend: Backend, admission: Admission) -> RequestMetrics:
    """Return the metrics of a gateway: requests by dialect, requests in progress, and those of the backend."""

    def gauges() -> Iterable[MetricFamily]:
        inside = {"active": admission.active - admission.waiting, "held": admission.waiting}
        states = {"paused": admission.paused, "draining": admission.draining}
        yield MetricFamily.by_kind("requests_inside", "Requests being answered, and held until a pause ends.", inside)
        yield MetricFamily.by_kind("state", "Whether requests are held or refused at the moment.", states)
        yield from backend.metric_gauges()

    return RequestMetrics("mini_agentic_rl_gateway", "dialect", _SECONDS, gauges, backend.metric_counters, streams=True)


def _model_endpoints(backend: Backend) -> tuple[Endpoint, Endpoint]:
    """Return the endpoints of the list of models and of each model, in OpenAI's or Anthropic's form."""

    def row(request: Request, name: str) -> Json:
        if _ANTHROPIC in request.headers:
            return {"id": name, "type": "model", "display_name": name, "created_at": "1970-01-01T00:00:00Z"}
        length = {} if backend.context_length is None else {"max_model_len": backend.context_length}
        return {"id": name, "object": "model", "created": 0, "owned_by": backend.owner, **length}

    async def models(request: Request) -> Response:
        names = backend.models
        rows = [row(request, name) for name in names]
        if _ANTHROPIC in request.headers:
            ends = {"first_id": names[0], "last_id": names[-1]} if names else {"first_id": None, "last_id": None}
            return json_response({"data": rows, "has_more": False, **ends})
        return json_response({"object": "list", "data": rows})

    async def model(request: Request) -> Response:
        name = request.path_params["model"]
        if name not in backend.models:
            raise UnknownModelError(name, backend.models)
        return json_response(row(request, name))

    return models, model


def _add_health(app: Starlette, admission: Admission, metrics: RequestMetrics, backend: Backend) -> None:
    """Add `/health` and `/healthz`, with status 503 while the server drains, and `/metrics`; they need no key."""

    async def health(request: Request) -> Response:
        state = "draining" if admission.draining else "paused" if admission.paused else "ok"
        return json_response({"status": state, **backend.facts()}, 503 if admission.draining else 200)

    async def scrape(request: Request) -> Response:
        return Response(metrics.text(), media_type=METRICS_CONTENT_TYPE)

    for path, endpoint in (("/health", health), ("/v1/health", health), ("/healthz", health), ("/metrics", scrape)):
        for prefix in _PREFIXES:
            app.router.routes.append(Route(prefix + path, endpoint, methods=["GET"]))
