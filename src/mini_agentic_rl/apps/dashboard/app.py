"""The application of the dashboard: a page, and the JSON that it shows. Requests only read.

    GET /                                                the page; its views have addresses after the #
    GET /dashboard/api/runs                              the runs
    GET /dashboard/api/runs/RUN/curves                   the numbers of a run
    GET /dashboard/api/runs/RUN/doctor                   findings of the doctor
    GET /dashboard/api/runs/RUN/rollouts                 a page of rollouts, filtered
    GET /dashboard/api/runs/RUN/rollouts/ID              a rollout; /tokens has its tokens
    GET /dashboard/api/runs/RUN/groups                   a page of groups; /view?group=GROUP is one
    GET /dashboard/api/runs/RUN/workers, …/resources     workers, and versions of resources
    GET /dashboard/api/events                            server-sent events: the runs that have changed

Files and databases are read in threads, because the event loop may be that of a store server.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import cache
from importlib import resources
from typing import Annotated, Any, Final, TypeAlias, TypeVar

from pydantic import Field
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from ...config import COMMAS
from ...errors import UserError
from ...http import (
    Admission,
    AdmittedEndpoint,
    AdmittingServer,
    ApiKeys,
    BadRequestError,
    Body,
    Endpoint,
    EventStream,
    HttpError,
    NotServedError,
    RequestLimits,
    WebPages,
    checked,
    disconnected,
    encode,
    new_app,
    openai_response,
)
from ...redaction import without_secrets_within
from ...types import RolloutStatus, trainable_agents_in
from .examined import examine
from .rollouts import MAX_GROUP, MAX_RESOURCES, MAX_WORKERS, group_rows, latest_spans, rollout_rows, spans_of
from .sources import ShownRun
from .views import group_view, rollout_view, tokens_view

# The built page: an HTML file, a script and a style sheet, and its security headers.
#
# The page contains no data, so it needs no key; its script asks for the key and sends it with every request.
# Transcripts are hostile input: they are rendered as plain text, and the policy below forbids foreign scripts, styles,
# frames and requests.


POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}
_FILES: Final = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/dashboard/app.js": ("app.js", "text/javascript; charset=utf-8"),
    "/dashboard/app.css": ("app.css", "text/css; charset=utf-8"),
    "/dashboard/icon.svg": ("icon.svg", "image/svg+xml"),
}
PATHS: Final = frozenset(_FILES)
"""Paths that are served without a key."""


def _serving(name: str, kind: str) -> Endpoint:
    async def serve(request: Request) -> Response:
        return Response(_content(name), headers=HEADERS, media_type=kind)

    return serve


@cache
def _content(name: str) -> bytes:
    return (resources.files(__package__) / "static" / name).read_bytes()


logger = logging.getLogger(__name__)


# Server-sent events with the names of the runs that have changed; the page then reloads its data.


_LOOK_SECONDS: Final = 1.0
_SIGN_SECONDS: Final = 15.0
"""Seconds without an event after which a comment keeps the connection alive."""


async def events_of(sources: Sequence[ShownRun], ended: Callable[[], bool]) -> AsyncIterator[bytes]:
    """Yield an event `changed` with the names of runs whenever these have changed, until `ended`."""
    known = {source.name: await _mark(source) for source in sources}
    yield b"event: ready\ndata: []\n\n"
    quiet_since = time.monotonic()
    while not ended():
        await asyncio.sleep(_LOOK_SECONDS)
        changed = []
        for source in sources:
            mark = await _mark(source)
            if mark != known[source.name]:
                known[source.name] = mark
                changed.append(source.name)
        if changed:
            yield b"event: changed\ndata: " + json.dumps(changed).encode() + b"\n\n"
            quiet_since = time.monotonic()
        elif time.monotonic() - quiet_since > _SIGN_SECONDS:
            yield b": nothing new\n\n"
            quiet_since = time.monotonic()


async def _mark(source: ShownRun) -> str:
    try:
        return await source.mark()
    except Exception as error:  # the store may be reachable again later
        logger.debug("the dashboard cannot read %s: %s", source.name, error)
        return ""


MAX_PAGE: Final = 200
"""Most items of one page."""

ShortText: TypeAlias = Annotated[str, Field(max_length=500)]
WholeNumber: TypeAlias = Annotated[int, Field(ge=0, lt=10**18)]


class PageQuery(Body):
    """The query string of a list."""

    limit: int = Field(default=100, ge=1, le=MAX_PAGE)
    cursor: WholeNumber | None = None


class RolloutsQuery(PageQuery):
    """The query string of the list of rollouts, with its filters."""

    status: Annotated[list[RolloutStatus], COMMAS] | None = None
    step: WholeNumber | None = None
    reward_min: float | None = None
    reward_max: float | None = None
    mode: ShortText | None = None
    group: ShortText | None = None
    worker: ShortText | None = None
    task: ShortText | None = None
    text: ShortText | None = None

    def conditions(self) -> dict[str, Any]:
        """Return the filters as arguments of `LightningStore.list_rollouts`."""
        return {
            "status_in": self.status or None,
            "step": None if self.step is None else self.step - 1,  # stores have the number of steps finished before
            "reward_min": self.reward_min,
            "reward_max": self.reward_max,
            "mode": self.mode,
            "group": self.group,
            "worker_contains": self.worker,
            "input_contains": self.task,
            "text": self.text,
        }


QueryT = TypeVar("QueryT", bound=PageQuery)


def _query(kind: type[QueryT], request: Request) -> QueryT:
    """Return the query string of a request; an empty field counts as missing."""
    return checked(kind, {name: value for name, value in request.query_params.items() if value})


API: Final = "/dashboard/api"
_FULL: Final = 2_000_000
"""Most characters of a text if the page requests all of it."""

View = Callable[[ShownRun, Request], Awaitable[Any]]


def dashboard_pages(sources: Sequence[ShownRun], admission: Admission) -> WebPages:
    """Return the pages of a dashboard over these runs, for an application of `http.new_app`.

    Args:
        sources: The runs.
        admission: The admission of the server.
    """
    by_name = {source.name: source for source in sources}

    async def runs(request: Request) -> Response:
        facts = await asyncio.gather(*(asyncio.to_thread(source.facts) for source in sources))
        totals = await asyncio.gather(*(source.totals() for source in sources))
        return _json({"runs": [{**fact, "totals": total} for fact, total in zip(facts, totals, strict=True)]})

    async def events(request: Request) -> Response:
        return _Events(events_of(sources, lambda: admission.draining))

    def of_run(view: View) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            source = by_name.get(request.path_params["run"])
            if source is None:
                raise NotServedError(request.method, request.url.path)
            try:
                content = await view(source, request)
            except ValueError as error:
                raise BadRequestError(str(error)) from error
            except UserError as error:
                raise HttpError(str(error)) from error
            if content is None:
                raise NotServedError(request.method, request.url.path)
            return content if isinstance(content, Response) else await asyncio.to_thread(_json, content)

        return answer

    views: Mapping[str, View] = {
        "curves": lambda source, _: asyncio.to_thread(source.curves),
        "doctor": _doctor,
        "rollouts": _rollouts,
        "rollouts/{id}": _rollout,
        "rollouts/{id}/tokens": _tokens,
        "groups": _groups,
        "groups/view": _group,
        "workers": _workers,
        "resources": _resources,
    }
    routes = [Route(path, _serving(name, kind), methods=["GET"]) for path, (name, kind) in _FILES.items()]
    for path, endpoint in (
        (f"{API}/runs", runs),
        (f"{API}/events", events),
        *((f"{API}/runs/{{run}}/{path}", of_run(view)) for path, view in views.items()),
    ):
        admitted = AdmittedEndpoint("dashboard", endpoint, admission, None, openai_response)
        routes.append(Route(path, admitted, methods=["GET"]))
    return WebPages(routes, PATHS)


async def close_sources(sources: Sequence[ShownRun]) -> None:
    """Close the runs of a dashboard."""
    for source in sources:
        await source.close()


async def _doctor(source: ShownRun, request: Request) -> Any:
    return (await examine(source)).as_json()


async def _rollouts(source: ShownRun, request: Request) -> Any:
    query = _query(RolloutsQuery, request)
    rows, after = await rollout_rows(await source.store(), query.conditions(), query.limit, query.cursor)
    return {"items": rows, "next": None if after is None else str(after)}


async def _rollout(source: ShownRun, request: Request) -> Any:
    store, rollout_id = await source.store(), request.path_params["id"]
    rollout = await store.get_rollout_by_id(rollout_id)
    if rollout is None:
        return None
    attempts, spans = await store.query_attempts(rollout_id), await spans_of(store, rollout_id)
    full = {"shown": _FULL} if request.query_params.get("full") else {}
    return await asyncio.to_thread(rollout_view, rollout, attempts.items, spans, **full)


async def _tokens(source: ShownRun, request: Request) -> Any:
    store, rollout_id = await source.store(), request.path_params["id"]
    rollout = await store.get_rollout_by_id(rollout_id)
    if rollout is None:
        return None
    spans = await spans_of(store, rollout_id)
    texts = await asyncio.to_thread(source.texts)
    return await asyncio.to_thread(tokens_view, spans, trainable_agents_in(rollout.metadata or {}), texts)


async def _groups(source: ShownRun, request: Request) -> Any:
    query = _query(PageQuery, request)
    rows, after = await group_rows(await source.store(), query.limit, query.cursor)
    return {"items": rows, "next": None if after is None else str(after)}


async def _group(source: ShownRun, request: Request) -> Any:
    store = await source.store()
    rows, _ = await rollout_rows(store, {"group": request.query_params.get("group", "")}, MAX_GROUP)
    if not rows:
        return None
    rows.reverse()
    spans = await asyncio.gather(*(spans_of(store, row["id"]) for row in rows))
    latest = {row["id"]: latest_spans(of_rollout) for row, of_rollout in zip(rows, spans, strict=True)}
    texts = await asyncio.to_thread(source.texts)
    return await asyncio.to_thread(group_view, rows, latest, texts)


async def _workers(source: ShownRun, request: Request) -> Any:
    workers = await (await source.store()).query_workers(sort_by="worker_id", limit=MAX_WORKERS)
    return {"items": [worker.model_dump(mode="json") for worker in workers]}


async def _resources(source: ShownRun, request: Request) -> Any:
    newest = await (await source.store()).query_resources(sort_order="desc", limit=MAX_RESOURCES)
    shown = [await asyncio.to_thread(without_secrets_within, update.model_dump(mode="json")) for update in newest]
    return {"items": shown}


def _json(value: Any) -> Response:
    return Response(encode(value), headers={**HEADERS, "Cache-Control": "no-store"}, media_type="application/json")


class _Events(EventStream):
    """A response of server-sent events."""

    def __init__(self, events: AsyncIterator[bytes]) -> None:
        super().__init__(headers={**HEADERS, "Cache-Control": "no-store"}, media_type="text/event-stream")
        del self.headers["content-length"]
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        gone = asyncio.ensure_future(disconnected(receive))
        try:
            async for event in self._events:
                if gone.done():
                    return
                await send({"type": "http.response.body", "body": event, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            gone.cancel()


# The server of `mini-agentic-rl dashboard`.


class DashboardServer(AdmittingServer):
    """Serve a dashboard until it is stopped, which also closes its runs.

    Args:
        sources: The runs, at least one.
        host: Address to listen on; by default for this computer alone.
        port: Port to listen on; 0 takes a free one.
        api_keys: Accepted keys; required if `host` is not this computer's loopback.
    """

    def __init__(
        self, sources: Sequence[ShownRun], host: str = "127.0.0.1", port: int = 8090, *, api_keys: Sequence[str] = ()
    ) -> None:
        keys = ApiKeys(api_keys)
        admission = Admission(RequestLimits(), keys)
        pages = dashboard_pages(sources, admission)

        @asynccontextmanager
        async def closing(app: Starlette) -> AsyncIterator[None]:
            yield
            await asyncio.shield(close_sources(sources))

        app = new_app(
            openai_response,
            keys,
            title="mini-agentic-rl dashboard",
            about="Runs, rollouts, groups and tokens: the page is at /.",
            pages=pages,
            lifespan=closing,
            open_paths=(),
        )
        super().__init__(app, admission, host, port, "dashboard")
