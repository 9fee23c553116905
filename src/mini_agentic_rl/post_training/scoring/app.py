"""The reward service as an ASGI application: requests to score, health, metrics."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ... import __version__
from ...http import (
    METRICS_CONTENT_TYPE,
    Admission,
    AdmittedEndpoint,
    Body,
    Endpoint,
    NotServedError,
    checked,
    client_gone,
    json_object,
    json_response,
    new_app,
    openai_response,
    read_body,
    unless_disconnected,
)
from .batcher import Batcher
from .metrics import ScoringMetrics
from .openapi import service_document
from .requests import PairBatchRequest, PairRequest, ScoreBatchRequest, ScoreRequest
from .reward_model import RewardModel
from .service import ScoringService

BodyT = TypeVar("BodyT", bound=Body)


def create_app(
    model: RewardModel, batcher: Batcher, admission: Admission, metrics: ScoringMetrics, max_items: int
) -> Starlette:
    """Return the ASGI application; the batcher runs while it serves."""
    service = ScoringService(model, batcher, max_items)
    limit = admission.limits.max_body_bytes

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        running = asyncio.create_task(batcher.run())
        yield
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        service.close()

    def scoring(kind: type[BodyT], answer: Callable[[BodyT], Awaitable[BaseModel]]) -> Endpoint:
        async def serve(request: Request) -> Response:
            if request.method != "POST":
                raise NotServedError(request.method, request.url.path, 405, {"Allow": "POST"})
            body = checked(kind, json_object(await read_body(request, limit)))
            found: list[BaseModel] = []

            async def work() -> None:
                found.append(await answer(body))

            if not await unless_disconnected(work(), request.receive):
                return client_gone()
            return json_response(found[0].model_dump())

        return serve

    async def health(request: Request) -> Response:
        return json_response(_health(model, batcher, admission), 503 if admission.draining else 200)

    async def scrape(request: Request) -> Response:
        return Response(metrics.text(), media_type=METRICS_CONTENT_TYPE)

    endpoints = {
        "/score": scoring(ScoreRequest, service.score),
        "/score/batch": scoring(ScoreBatchRequest, service.score_batch),
        "/score-pair": scoring(PairRequest, service.score_pair),
        "/score-pair/batch": scoring(PairBatchRequest, service.score_pair_batch),
    }
    return new_app(
        openai_response,
        routes=[
            *(
                # of any method: who has no key learns nothing, not even which methods there are
                Route(path, AdmittedEndpoint(path, endpoint, admission, metrics, openai_response))
                for path, endpoint in endpoints.items()
            ),
            Route("/health", health, methods=["GET"]),
            Route("/metrics", scrape, methods=["GET"]),
        ],
        lifespan=lifespan,
        openapi=lambda: service_document(__version__, model.name, limit, max_items),
    )


def queue_of(batcher: Batcher) -> dict[str, int]:
    """Return how many texts wait, and how many are computed."""
    return {"waiting": batcher.waiting, "computing": batcher.computing}


def _health(model: RewardModel, batcher: Batcher, admission: Admission) -> dict[str, Any]:
    return {
        "status": "draining" if admission.draining else "ok",
        "ready": not admission.draining,
        "model": model.name,
        "device": str(model.device),
        "max_length": model.max_length,
        "shares_prefixes": model.shares_prefixes,
        "requests": admission.active,
        "queue": queue_of(batcher),
    }
