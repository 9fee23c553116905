"""The HTTP face of the reward service: paths, the door, health, metrics. Keys, rates and draining are the gateway's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from fastapi import FastAPI
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from ... import __version__
from ...gateway.bodies import Body, checked
from ...gateway.completion.stream import unless_disconnected
from ...gateway.dialects.base import encode, json_object
from ...gateway.errors import GatewayError
from ...gateway.http import body_of, gone, json_response
from ...gateway.limits import Gate
from ...gateway.metrics import CONTENT_TYPE, Watch
from .batcher import Batcher
from .metrics import ScoringMetrics
from .openapi import OPERATIONS, document
from .requests import PairBatchRequest, PairRequest, ScoreBatchRequest, ScoreRequest
from .reward_model import RewardModel
from .service import ScoringService

BodyT = TypeVar("BodyT", bound=Body)


def create_app(model: RewardModel, batcher: Batcher, gate: Gate, metrics: ScoringMetrics, max_items: int) -> FastAPI:
    """The ASGI application; the batcher runs while it serves."""
    service = ScoringService(model, batcher, max_items)
    limit = gate.limits.max_body_bytes

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        running = asyncio.create_task(batcher.run())
        yield
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        service.close()

    def serving(kind: type[BodyT], answer: Callable[[BodyT], Awaitable[BaseModel]]) -> Callable[[Request], Any]:
        async def serve(request: Request) -> Response:
            body = checked(kind, json_object(await body_of(request, limit)))
            found: list[BaseModel] = []

            async def work() -> None:
                found.append(await answer(body))

            if not await unless_disconnected(work(), request.receive):
                return gone()
            return json_response(found[0].model_dump())

        return serve

    async def health(request: Request) -> Response:
        return json_response(_health(model, batcher, gate), 503 if gate.draining else 200)

    async def scrape(request: Request) -> Response:
        return Response(metrics.text(), media_type=CONTENT_TYPE)

    app = _App(model.name, limit, max_items, lifespan=lifespan)
    app.add_route("/score", serving(ScoreRequest, service.score), methods=["POST"])
    app.add_route("/score/batch", serving(ScoreBatchRequest, service.score_batch), methods=["POST"])
    app.add_route("/score-pair", serving(PairRequest, service.score_pair), methods=["POST"])
    app.add_route("/score-pair/batch", serving(PairBatchRequest, service.score_pair_batch), methods=["POST"])
    app.add_route("/health", health, methods=["GET"])
    app.add_route("/metrics", scrape, methods=["GET"])
    app.add_exception_handler(GatewayError, _refused)
    app.add_exception_handler(HTTPException, _not_served)
    app.add_exception_handler(ClientDisconnect, _left)
    app.add_exception_handler(Exception, _failed)
    app.add_middleware(_Door, gate=gate, metrics=metrics)
    return app


class _App(FastAPI):
    def __init__(self, model: str, max_body_bytes: int, max_items: int, **options: Any) -> None:
        super().__init__(docs_url=None, redoc_url=None, **options)
        self._facts = (__version__, model, max_body_bytes, max_items)

    def openapi(self) -> dict[str, Any]:
        return document(*self._facts)


class _Door:
    """Requests to score come in by the gate, stay inside until their answer is sent, and are counted."""

    def __init__(self, app: ASGIApp, gate: Gate, metrics: ScoringMetrics) -> None:
        self._app = app
        self._gate = gate
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] not in OPERATIONS:
            await self._app(scope, receive, send)
            return
        watch = Watch(receive, send)
        request = Request(scope)
        try:
            try:
                with self._gate.admitted(request.headers):
                    await self._app(scope, watch.receive, watch.send)
            except GatewayError as error:
                await _refusal(error)(scope, watch.receive, watch.send)
        finally:
            self._metrics.observe(scope["path"], watch)


def _health(model: RewardModel, batcher: Batcher, gate: Gate) -> dict[str, Any]:
    return {
        "status": "draining" if gate.draining else "ok",
        "ready": not gate.draining,
        "model": model.name,
        "device": str(model.device),
        "max_length": model.max_length,
        "shares_prefixes": model.shares_prefixes,
        "requests": gate.active,
        "queue": queue_of(batcher),
    }


def queue_of(batcher: Batcher) -> dict[str, int]:
    """How many texts wait, and how many are computed."""
    return {"waiting": batcher.waiting, "computing": batcher.computing}


def _refusal(error: GatewayError) -> Response:
    return Response(encode(error.body()), error.status, headers=error.headers(), media_type="application/json")


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, GatewayError)
    return _refusal(error)


async def _not_served(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 404
    refusal = GatewayError(f"{request.method} {request.url.path} is not served here", kind="invalid_request_error")
    return json_response(refusal.body(), status)


async def _left(request: Request, error: Exception) -> Response:
    return gone()


async def _failed(request: Request, error: Exception) -> Response:
    return json_response(GatewayError("the server failed to answer; its log says why").body(), 500)
