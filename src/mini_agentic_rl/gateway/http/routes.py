"""Routes that every gateway serves: dialects under rollout URLs, lists of models, health, metrics."""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, TypeAlias

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ...http import (
    METRICS_CONTENT_TYPE,
    Admission,
    AdmittedEndpoint,
    Endpoint,
    HttpError,
    MetricFamily,
    RequestMetrics,
    guarded,
    json_response,
    openai_response,
)
from ..caller import Caller
from ..dialects import Counting, Dialect, Lookup
from ..errors import UnknownModelError

Callers: TypeAlias = Callable[[Request], Awaitable[Caller]]
"""Finds out who makes a request."""
TokenCount: TypeAlias = Callable[[Request, Callable[[dict[str, Any]], dict[str, Any]]], Awaitable[int]]
"""Reads a request, and counts the tokens that the prompt of the chat request in its body has."""

logger = logging.getLogger(__name__)

ROLLOUT_PREFIX: Final = "/rollout/{rollout_id}/attempt/{attempt_id}"
TOKENS_HELP: Final = "Tokens of prompts, those of them found in a cache, and tokens sampled."
_ANTHROPIC: Final = "anthropic-version"
"""Header that Anthropic's clients send with every request."""
_MOST_NAMES: Final = 32
_LONGEST_NAME: Final = 80
_MOST_TOLD: Final = 1000
_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)


class IgnoredParameters:
    """Tells clients what a request asked for without effect, and the log once of each such thing."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def headers(self, names: Sequence[str]) -> dict[str, str]:
        """Return the headers of an answer for which these were left out."""
        if not names:
            return {}
        # names are foreign text, and headers hold no other letters
        shown = [re.sub(r"[^ -+\--~]", "?", name)[:_LONGEST_NAME] for name in names[:_MOST_NAMES]]
        new = [name for name in shown if name not in self._told]
        if new and len(self._told) < _MOST_TOLD:
            self._told.update(new)
            logger.warning("requests ask for what has no effect here: %s", ", ".join(new))
        return {"X-Ignored-Parameters": ", ".join(shown)}


def gateway_metrics(
    admission: Admission,
    counters: Callable[[], Iterable[MetricFamily]],
    gauges: Callable[[], Iterable[MetricFamily]],
) -> RequestMetrics:
    """Return the metrics of a gateway: its requests by dialect, who is inside, and what the gateway counts itself."""

    def all_gauges() -> Iterable[MetricFamily]:
        inside = {"active": admission.active - admission.waiting, "held": admission.waiting}
        states = {"paused": admission.paused, "draining": admission.draining}
        told = "Requests being answered, and held until a pause ends."
        yield MetricFamily.by_kind("requests_inside", told, inside)
        yield MetricFamily.by_kind("state", "Whether requests are held or refused at the moment.", states)
        yield from gauges()

    metrics = RequestMetrics("mini_agentic_rl_gateway", "dialect", _SECONDS, streams=True)
    metrics.read_when_asked(all_gauges, counters)
    return metrics


def add_dialect(
    app: Starlette,
    dialect: Dialect,
    endpoint: Endpoint,
    admission: Admission,
    metrics: RequestMetrics,
    callers: Callers,
    count: TokenCount | None = None,
) -> None:
    """Serve a dialect at its path and under each attempt's own URL, and beside it what it remembers and, where
    `count` is given, the lengths of prompts. All of these come in by the admission, and are counted."""

    def refused(error: HttpError) -> Response:
        return json_response(dialect.refusal(error), error.status, error.headers)

    def serve(method: str, path: str, answer: Endpoint) -> None:
        admitted = AdmittedEndpoint(path.rpartition("/v1/")[2], answer, admission, metrics, refused)
        for prefix in ("", ROLLOUT_PREFIX):
            app.router.routes.append(Route(prefix + path, admitted, methods=[method]))

    serve("POST", dialect.path, endpoint)
    for lookup in dialect.lookups:
        serve(lookup.method, lookup.path, _lookup_endpoint(lookup, admission, callers))
    if count is not None and dialect.counting is not None:
        serve("POST", dialect.counting.path, _counting_endpoint(dialect.counting, count, admission, callers))


def add_information(app: Starlette, path: str, endpoint: Endpoint) -> None:
    """Serve what can be asked at any time, at `path` and under each attempt's own URL."""
    for prefix in ("", ROLLOUT_PREFIX):
        app.router.routes.append(Route(prefix + path, guarded(endpoint, openai_response), methods=["GET"]))


def add_models(
    app: Starlette,
    admission: Admission,
    metrics: RequestMetrics,
    names: Callable[[], Sequence[str]],
    about: dict[str, Any],
) -> None:
    """Serve the list of models, and each by its name, to those whom the admission lets in.

    Args:
        names: returns what may be asked for.
        about: what is told of every model beside its name.
    """

    def row(name: str) -> dict[str, Any]:
        return {"id": name, "object": "model", "created": 0, **about}

    def anthropic_row(name: str) -> dict[str, Any]:
        return {"id": name, "type": "model", "display_name": name, "created_at": "1970-01-01T00:00:00Z"}

    async def models(request: Request) -> Response:
        known = names()
        if _ANTHROPIC in request.headers:
            ends = {"first_id": known[0], "last_id": known[-1]} if known else {"first_id": None, "last_id": None}
            return json_response({"data": [anthropic_row(name) for name in known], "has_more": False, **ends})
        return json_response({"object": "list", "data": [row(name) for name in known]})

    async def model(request: Request) -> Response:
        name, known = request.path_params["model"], names()
        if name not in known:
            raise UnknownModelError(name, known)
        return json_response(anthropic_row(name) if _ANTHROPIC in request.headers else row(name))

    for path, endpoint in (("/v1/models", models), ("/v1/models/{model:path}", model)):
        admitted = AdmittedEndpoint("models", endpoint, admission, metrics, openai_response)
        for prefix in ("", ROLLOUT_PREFIX):
            app.router.routes.append(Route(prefix + path, admitted, methods=["GET"]))


def add_health(
    app: Starlette, admission: Admission, metrics: RequestMetrics, about: Callable[[], dict[str, Any]]
) -> None:
    """Serve `/health` and `/healthz`, with status 503 once the server drains, and `/metrics`; none asks for a key."""

    async def health(request: Request) -> Response:
        state = "draining" if admission.draining else "paused" if admission.paused else "ok"
        return json_response({"status": state, **about()}, 503 if admission.draining else 200)

    async def scrape(request: Request) -> Response:
        return Response(metrics.text(), media_type=METRICS_CONTENT_TYPE)

    for path in ("/health", "/v1/health", "/healthz"):
        add_information(app, path, health)
    add_information(app, "/metrics", scrape)


def _lookup_endpoint(lookup: Lookup, admission: Admission, callers: Callers) -> Endpoint:
    async def answer(request: Request) -> Response:
        key = admission.keys.check(request.headers)
        scope = (await callers(request)).scope
        return json_response(lookup.answer(request.path_params["id"], scope, key, request.query_params))

    return answer


def _counting_endpoint(counting: Counting, count: TokenCount, admission: Admission, callers: Callers) -> Endpoint:
    async def answer(request: Request) -> Response:
        key, scope = admission.keys.check(request.headers), (await callers(request)).scope
        return json_response(counting.answer(await count(request, lambda body: counting.chat(body, scope, key))))

    return answer
