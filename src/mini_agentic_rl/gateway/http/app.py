"""The application of a gateway: one path for every request, in every dialect, over a policy and over upstreams.

    authenticate    the admission has checked the key; `caller_of` reads which attempt makes the call
    parse           the dialect makes a chat request of the body, in a thread where the body is large
    take            the backend (`Backend`) renders it, holds it to its limits and begins to answer, or refuses
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
    RequestLimits,
    RequestMetrics,
    guarded,
    json_response,
    new_app,
    openai_response,
    read_json,
    unless_disconnected,
)
from ..dialects import Caller, CallScope, ChatRequest, Dialect, Exchange, parse_chat_request
from ..errors import BodyBeyondContextError, UnknownModelError, UnnamedCallError

logger = logging.getLogger(__name__)

T = TypeVar("T")
Json = dict[str, Any]

_PREFIXES: Final = ("", "/rollout/{rollout_id}/attempt/{attempt_id}")
_ANTHROPIC: Final = "anthropic-version"
"""Header that Anthropic's clients send with every request."""
_MOST_NAMES: Final = 32
_LONGEST_NAME: Final = 80
_MOST_LOGGED: Final = 1000
_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
_EVENT_HEADERS: Final = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
_BYTES_PER_TOKEN: Final = 16
"""More than a token stands for on the mean, in JSON: Chinese in escapes of six bytes comes closest, with about ten."""
_BYTES_BESIDE: Final = 64 * 1024
"""For what is no part of the prompt: sampling settings, metadata, a schema of the answer."""


class Call(Protocol):
    """A request that a backend has taken. `whole` or `events`, and then `end` whatever happened."""

    @property
    def streams(self) -> bool:
        """True if the client asked for a stream."""

    @property
    def left_out(self) -> Sequence[str]:
        """What the request asks for that has no effect."""

    async def whole(self) -> bytes:
        """Return the body of the whole answer; the store has the record by then.

        Raises:
            HttpError: it failed, or could not be recorded.
        """

    def events(self) -> AsyncGenerator[bytes, None]:
        """Yield the server-sent events of the answer; the store has the record before the last one.

        Raises:
            HttpError: it failed, or could not be recorded.
        """

    async def end(self) -> None:
        """Give up what the call holds, and record what has come of an answer that was broken off."""


class Backend(Protocol):
    """Answers the requests of a gateway: a policy that samples, or upstreams. Used from one event loop."""

    title: str
    about: str
    """How the server is used, for the page that a browser is shown."""
    owner: str
    """`owned_by` in the list of models."""

    @property
    def models(self) -> Sequence[str]:
        """Names that may be asked for."""

    @property
    def records(self) -> bool:
        """True if calls under a rollout's URL are recorded."""

    @property
    def context_length(self) -> int | None:
        """Tokens that a model may see; None where that is not known."""

    @property
    def dialects(self) -> Sequence[Dialect]:
        """The wire formats that are served."""

    @property
    def count(self) -> Callable[[ChatRequest], Awaitable[int]] | None:
        """Returns the tokens of the prompt of a chat request, or raises a HttpError; None where they are not known."""

    def parse(self, dialect: Dialect, body: Json, exchange: Exchange) -> tuple[Any, Sequence[str]]:
        """Check a chat request, in some thread; return it for `take`, and what the body asks for without effect.

        Raises:
            BadRequestError: a field has a bad value; `param` names it.
        """

    async def begin(self, chat: Any, exchange: Exchange, caller: Caller, key: str) -> Call:
        """Return a request whose answer has begun, or which can be answered whole.

        Raises:
            HttpError: it cannot be answered.
        """

    def forget(self, scope: CallScope) -> None:
        """Drop what is remembered of an attempt."""

    def facts(self) -> Json:
        """Return what `/health` reports."""

    def metric_counters(self) -> Iterable[MetricFamily]:
        """Return metrics that only grow."""

    def metric_gauges(self) -> Iterable[MetricFamily]:
        """Return metrics of the present."""


class SessionGate(Protocol):
    """The sessions of agents in use, for a gateway: an optional part (`apps.learning`). Used from one event loop."""

    async def caller(self, request: Request, key: str, caller: Caller) -> Caller:
        """Return who makes a request with an API key: `caller`, in the session that the request's headers name.

        Raises:
            HttpError: a header cannot be read, or the session is that of another key.
        """

    def add_routes(
        self,
        app: Starlette,
        admission: Admission,
        metrics: RequestMetrics,
        forget: Callable[[CallScope, str], None],
    ) -> None:
        """Add the routes of sessions, for admitted requests. `forget` drops what the gateway remembers of an attempt,
        given its scope and the API key."""


def create_app(
    backend: Backend,
    admission: Admission,
    sessions: SessionGate | None = None,
    close: Callable[[], Awaitable[None]] | None = None,
) -> Starlette:
    """Return the ASGI application.

    Args:
        backend: answers the requests.
        admission: lets them in.
        sessions: knows the sessions that requests belong to; None where there are none.
        close: called when the application ends.
    """

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        if close is not None:
            await close()

    app = new_app(openai_response, admission.keys, title=backend.title, about=backend.about, lifespan=lifespan)
    metrics = _metrics(backend, admission)
    ignored = IgnoredParameters()

    def add(method: str, path: str, endpoint: Endpoint, dialect: Dialect | None = None) -> None:
        name = "models" if dialect is None else path.rpartition("/v1/")[2]
        respond = openai_response if dialect is None else dialect_response(dialect)
        admitted = AdmittedEndpoint(name, endpoint, admission, metrics, respond)
        for prefix in _PREFIXES:
            app.router.routes.append(Route(prefix + path, admitted, methods=[method]))

    async def identify(request: Request) -> tuple[str, Caller]:
        """Return the API key, which the admission has checked, and who makes the request."""
        key: str = request.state.api_key
        caller = caller_of(request, backend.records)
        return key, caller if sessions is None else await sessions.caller(request, key, caller)

    async def read(request: Request, parse: Callable[[Json], T]) -> T:
        return await _read(request, admission.limits, parse, backend.context_length)

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
            headers = ignored.headers([*left_out, *call.left_out])
            if call.streams:
                return AnswerStream(call, exchange, headers)
            try:
                body = await unless_disconnected(call.whole(), request.receive)
            finally:
                await call.end()
            return Response(body, headers=headers, media_type="application/json")

        return answer

    for dialect in backend.dialects:
        add("POST", dialect.path, answering(dialect), dialect)
        for lookup in dialect.lookups:

            async def look_up(request: Request, lookup: Any = lookup) -> Response:
                key, caller = await identify(request)
                return json_response(lookup.answer(request.path_params["id"], caller.scope, key))

            add(lookup.method, lookup.path, look_up, dialect)
        if dialect.counting is not None and backend.count is not None:

            async def count(request: Request, counting: Any = dialect.counting, count: Any = backend.count) -> Response:
                key, caller = await identify(request)
                chat = await read(request, lambda body: parse_chat_request(counting.chat(body, caller.scope, key)))
                return json_response(counting.answer(await count(chat)))

            add("POST", dialect.counting.path, count, dialect)

    def forget(scope: CallScope, key: str) -> None:
        backend.forget(scope)
        for dialect in backend.dialects:
            dialect.forget(scope, key)

    if sessions is not None:
        sessions.add_routes(app, admission, metrics, forget)
    models, model = _model_endpoints(backend)
    add("GET", "/v1/models", models)
    add("GET", "/v1/models/{model:path}", model)
    _add_health(app, admission, metrics, backend)
    return app


def dialect_response(dialect: Dialect) -> Callable[[HttpError], Response]:
    """Return what makes the responses that report errors in a dialect."""
    return lambda error: json_response(dialect.refusal(error), error.status, error.headers)


async def _read(request: Request, limits: RequestLimits, parse: Callable[[Json], T], context_length: int | None) -> T:
    """Return what `parse` makes of the JSON object in the body, which is not read where no prompt that fits is so long.

    Args:
        request: its body has not been read yet.
        limits: bound it.
        parse: makes something of the object; called in some thread.
        context_length: tokens that the model may see; None where that is not known.

    Raises:
        HttpError: as `read_json` and `parse` do; a BodyBeyondContextError where the prompt cannot fit.
    """
    bound = limits.max_body_bytes
    if context_length is not None:
        bound = min(bound, context_length * _BYTES_PER_TOKEN + _BYTES_BESIDE)
    try:
        return await read_json(request, bound, parse, within_seconds=limits.max_body_seconds)
    except BodyTooLargeError:
        declared = request.headers.get("content-length", "")
        if context_length is None or bound == limits.max_body_bytes:
            raise
        if declared.isascii() and declared.isdecimal() and int(declared) > limits.max_body_bytes:
            raise BodyTooLargeError(limits.max_body_bytes) from None
        raise BodyBeyondContextError(bound, context_length) from None


def caller_of(request: Request, records: bool) -> Caller:
    """Return who makes a request.

    A rollout that the URL names counts, else that of the `baggage` header, unless the server records none.

    Args:
        request: the request.
        records: whether the server records the calls of rollouts.

    Raises:
        UnnamedCallError: it comes from a process that runs rollouts, and nothing says to which of them it belongs.
        BadRequestError: the header names half of an attempt.
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
    """The events of a call as a response; when the client goes away, the call is ended.

    Args:
        call: the call.
        exchange: the request in its dialect, which words the errors.
        headers: headers beside the usual.
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
        except ClientDisconnect:  # nobody is left to answer
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
        except Exception:  # a fault of ours must end this answer, not the server
            logger.exception("a streamed call failed")
            error = HttpError("the server failed to answer; its log says why")
        if error is not None:
            self.failed = True
            yield self._exchange.failed(error)


class IgnoredParameters:
    """Reports to clients what a request asked for without effect, and to the log once each such thing."""

    def __init__(self) -> None:
        self._logged: set[str] = set()

    def headers(self, names: Sequence[str]) -> dict[str, str]:
        """Return the headers of an answer for which these were left out."""
        if not names:
            return {}
        # names are foreign text, and headers hold no other letters
        shown = [re.sub(r"[^ -+\--~]", "?", name)[:_LONGEST_NAME] for name in names[:_MOST_NAMES]]
        new = [name for name in shown if name not in self._logged]
        if new and len(self._logged) < _MOST_LOGGED:
            self._logged.update(new)
            logger.warning("requests ask for what has no effect here: %s", ", ".join(new))
        return {"X-Ignored-Parameters": ", ".join(shown)}


def _metrics(backend: Backend, admission: Admission) -> RequestMetrics:
    """Return the metrics of a gateway: its requests by dialect, who is inside, and what the backend counts."""

    def gauges() -> Iterable[MetricFamily]:
        inside = {"active": admission.active - admission.waiting, "held": admission.waiting}
        states = {"paused": admission.paused, "draining": admission.draining}
        yield MetricFamily.by_kind("requests_inside", "Requests being answered, and held until a pause ends.", inside)
        yield MetricFamily.by_kind("state", "Whether requests are held or refused at the moment.", states)
        yield from backend.metric_gauges()

    metrics = RequestMetrics("mini_agentic_rl_gateway", "dialect", _SECONDS, streams=True)
    metrics.read_when_asked(gauges, backend.metric_counters)
    return metrics


def _model_endpoints(backend: Backend) -> tuple[Endpoint, Endpoint]:
    """Return what serves the list of models, and each by its name, in OpenAI's form or in Anthropic's."""

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
    """Serve `/health` and `/healthz`, with status 503 once the server drains, and `/metrics`; none needs a key."""

    async def health(request: Request) -> Response:
        state = "draining" if admission.draining else "paused" if admission.paused else "ok"
        return json_response({"status": state, **backend.facts()}, 503 if admission.draining else 200)

    async def scrape(request: Request) -> Response:
        return Response(metrics.text(), media_type=METRICS_CONTENT_TYPE)

    for path, endpoint in (("/health", health), ("/v1/health", health), ("/healthz", health), ("/metrics", scrape)):
        for prefix in _PREFIXES:
            app.router.routes.append(Route(prefix + path, guarded(endpoint, openai_response), methods=["GET"]))
