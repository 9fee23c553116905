"""The application of the dashboard: a page, and the JSON that it shows. Every request reads; none changes anything.

    GET /                                                the page; its views are addresses behind the #
    GET /dashboard/api/runs                              the runs
    GET /dashboard/api/runs/RUN/curves                   the numbers of a run
    GET /dashboard/api/runs/RUN/doctor                   what the doctor finds in it
    GET /dashboard/api/runs/RUN/rollouts                 a page of rollouts, filtered
    GET /dashboard/api/runs/RUN/rollouts/ID              a rollout; /tokens has its tokens
    GET /dashboard/api/runs/RUN/groups                   a page of groups; /view?group=GROUP is one
    GET /dashboard/api/runs/RUN/workers, …/resources     workers, and versions of resources
    GET /dashboard/api/events                            server-sent events: what has changed

Files and databases are read in threads, so that the event loop, which may be a store's, answers others meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from ...errors import UserError
from ...http import (
    Admission,
    AdmittedEndpoint,
    BadRequestError,
    EventStream,
    HttpError,
    NotServedError,
    WebPages,
    disconnected,
    encode,
    openai_response,
)
from ...redaction import without_secrets_within
from ...types import trainable_agents_in
from .assets import HEADERS, PATHS, asset_routes
from .events import events_of
from .examined import examine
from .requests import limit_of, rollout_filter
from .sources import ShownRun
from .views import group_view, rollout_view, tokens_view

logger = logging.getLogger(__name__)

API: Final = "/dashboard/api"
_FULL: Final = 2_000_000
"""Characters of one text where a page asks for all of it."""

View = Callable[[ShownRun, Request], Awaitable[Any]]


def dashboard_pages(sources: Sequence[ShownRun], admission: Admission) -> WebPages:
    """Return the pages of a dashboard over these runs, for an application of `http.new_app`.

    Args:
        admission: of the server that shows them: it lets requests in, by its keys.
    """
    by_name = {source.name: source for source in sources}

    async def runs(request: Request) -> Response:
        facts = await asyncio.gather(*(asyncio.to_thread(source.facts) for source in sources))
        totals = await asyncio.gather(*(source.browser.totals() for source in sources))
        return _json({"runs": [{**fact, "totals": total} for fact, total in zip(facts, totals, strict=True)]})

    async def events(request: Request) -> Response:
        return _Events(events_of(sources, lambda: admission.draining))

    def of_run(view: View) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            source = by_name.get(request.path_params["run"])
            if source is None:
                raise NotServedError(request.method, request.url.path)
            try:
                found = await view(source, request)
            except ValueError as error:
                raise BadRequestError(str(error)) from error
            except UserError as error:
                raise HttpError(str(error)) from error
            if found is None:
                raise NotServedError(request.method, request.url.path)
            return found if isinstance(found, Response) else await asyncio.to_thread(_json, found)

        return answer

    views: Mapping[str, View] = {
        "curves": _curves,
        "doctor": _doctor,
        "rollouts": _rollouts,
        "rollouts/{id}": _rollout,
        "rollouts/{id}/tokens": _tokens,
        "groups": _groups,
        "groups/view": _group,
        "workers": _workers,
        "resources": _resources,
    }
    routes = [*asset_routes()]
    for path, endpoint in (
        (f"{API}/runs", runs),
        (f"{API}/events", events),
        *((f"{API}/runs/{{run}}/{path}", of_run(view)) for path, view in views.items()),
    ):
        admitted = AdmittedEndpoint("dashboard", endpoint, admission, None, openai_response)
        routes.append(Route(path, admitted, methods=["GET"]))
    return WebPages(routes, PATHS)


async def close_sources(sources: Sequence[ShownRun]) -> None:
    """Close what the runs of a dashboard are read through."""
    for source in sources:
        await source.browser.close()


async def _curves(source: ShownRun, request: Request) -> Any:
    return {"rows": 0, "series": {}} if source.curves is None else await asyncio.to_thread(source.curves.view)


async def _doctor(source: ShownRun, request: Request) -> Any:
    return (await examine(source)).as_json()


async def _rollouts(source: ShownRun, request: Request) -> Any:
    query = request.query_params
    page = await source.browser.page(rollout_filter(query), query.get("cursor"), limit_of(query))
    return {"items": page.items, "next": page.next}


async def _rollout(source: ShownRun, request: Request) -> Any:
    browser, rollout_id = source.browser, request.path_params["id"]
    rollout = await browser.rollout(rollout_id)
    if rollout is None:
        return None
    attempts, spans = await browser.attempts(rollout_id), await browser.spans(rollout_id)
    full = {"shown": _FULL} if request.query_params.get("full") else {}
    return await asyncio.to_thread(rollout_view, rollout, attempts, spans, **full)


async def _tokens(source: ShownRun, request: Request) -> Any:
    browser, rollout_id = source.browser, request.path_params["id"]
    rollout = await browser.rollout(rollout_id)
    if rollout is None:
        return None
    spans = await browser.spans(rollout_id)
    texts = await asyncio.to_thread(source.texts)
    return await asyncio.to_thread(tokens_view, spans, trainable_agents_in(rollout.metadata or {}), texts)


async def _groups(source: ShownRun, request: Request) -> Any:
    query = request.query_params
    groups, after = await source.browser.groups(query.get("cursor"), limit_of(query))
    return {"items": groups, "next": after}


async def _group(source: ShownRun, request: Request) -> Any:
    browser = source.browser
    ids = await browser.group(request.query_params.get("group", ""))
    if not ids:
        return None
    rows, read = await asyncio.gather(browser.rows(ids), asyncio.gather(*map(browser.spans, ids)))
    if not rows:
        return None
    spans = {}
    for one, found in zip(ids, read, strict=True):
        latest = found[-1].attempt_id if found else None
        spans[one] = [span for span in found if span.attempt_id == latest]
    texts = await asyncio.to_thread(source.texts)
    return await asyncio.to_thread(group_view, rows, spans, texts)


async def _workers(source: ShownRun, request: Request) -> Any:
    return {"items": [worker.model_dump(mode="json") for worker in await source.browser.workers()]}


async def _resources(source: ShownRun, request: Request) -> Any:
    found = await source.browser.resources()
    return {"items": [without_secrets_within(one.model_dump(mode="json")) for one in found]}


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
