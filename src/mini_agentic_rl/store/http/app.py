"""The ASGI application of the store server: the routes of `wire`, the intake of traces, keys, errors."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any, Final

from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as HttpRoute

from ...http import (
    METRICS_CONTENT_TYPE,
    PAGES,
    Admission,
    AdmittedEndpoint,
    HttpError,
    NotServedError,
    OverloadedError,
    WebPages,
    is_json,
    new_app,
    off_loop,
    read_body,
)
from ...types import AttemptedRollout
from ..base import LightningStore
from ..errors import LightningStoreError
from ..ledger_store import LedgerStore
from ..once import carried_out_once
from . import wire
from .limits import TooManyItemsError, check_counts
from .metrics import StoreMetrics
from .openapi import store_document
from .otlp import PROTOBUF, OtlpIntake, status_message
from .otlp_wire import TooMuchError
from .pages import page_in_parts
from .responses import (
    STOPPING,
    LongPolls,
    RunningRequests,
    StoreResponse,
    error_response,
    failure,
    http_response,
    joined,
)
from .route import Route
from .wire_json import encode, is_large

logger = logging.getLogger(__name__)

_LONGEST_KEY: Final = 200
_ABOUT: Final = (
    "The rollouts, attempts and spans of a training, for an algorithm and runners elsewhere; agl rollouts list --store "
    "ADDRESS looks into it, and /openapi.json describes it. Where a key is set (AGL_API_KEY), requests carry "
    "'Authorization: Bearer KEY'."
)
_OPEN: Final = StoreResponse(200, b'{"status":"ok"}')


def create_app(
    store: LightningStore,
    polls: LongPolls,
    admission: Admission,
    *,
    origins: Sequence[str] = (),
    pages: WebPages | None = None,
) -> Starlette:
    """Return the application.

    Args:
        store: Answers the requests; called from the event loop that serves the application.
        polls: Holds the requests that wait.
        admission: Lets requests in, but for those for the health and the metrics, which everybody may send.
        origins: Web pages that may use the store from a browser; `*` means every page.
        pages: Shown at `/`.
    """
    running = RunningRequests()
    intake = OtlpIntake(store)
    metrics = StoreMetrics(store)
    limits = admission.limits

    async def read(request: Request) -> bytes:
        return await read_body(request, limits.max_body_bytes, gzip=True, within_seconds=limits.max_body_seconds)

    async def health(request: Request) -> Response:
        return http_response(STOPPING if admission.draining else _OPEN)

    async def serve(request: Request) -> Response:
        path = request.scope["raw_path"].decode("ascii", "replace").partition(f"{wire.PREFIX}/")[2]
        found = wire.find(request.method, path)
        if found is None:
            raise NotServedError(request.method, request.url.path)
        route, ids = found
        body = await read(request) if request.method == "POST" else b""
        if body and not is_json(request.headers):
            return http_response(failure(415, "send the body as Content-Type: application/json", "ValueError"))
        key = request.headers.get(wire.KEY_HEADER, "") if route.changes else ""
        if len(key) > _LONGEST_KEY:
            told = f"{wire.KEY_HEADER}: longer than {_LONGEST_KEY} characters"
            return http_response(failure(400, told, "ValueError"))
        key = f"{path} {key}" if key else ""
        work = _answer(store, route, ids, request, body, key)
        if route.waits:
            with admission.resting(request.headers):
                return http_response(await polls.hold(work, request.receive))
        return http_response(await (running.once(key, work) if key else work))

    async def traces(request: Request) -> Response:
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != PROTOBUF:
            return _protobuf(415, status_message(f"send traces as Content-Type: {PROTOBUF}"))
        try:
            return _protobuf(200, await intake.export_response(await read(request)))
        except LightningStoreError as error:
            return _protobuf(503, status_message(str(error)))
        except TooMuchError as error:
            return _protobuf(413, status_message(str(error)))
        except ValueError as error:
            return _protobuf(400, status_message(str(error)))

    async def scrape(request: Request) -> Response:
        try:
            return Response(await metrics.text(), media_type=METRICS_CONTENT_TYPE)
        except LightningStoreError as error:
            return http_response(failure(503, str(error), "LightningStoreError"))

    return new_app(
        error_response,
        admission.keys,
        title="mini-agentic-rl store",
        about=_ABOUT,
        routes=[
            HttpRoute(wire.HEALTH, health, methods=["GET"]),
            HttpRoute(
                f"{wire.PREFIX}/{{path:path}}",
                AdmittedEndpoint("store", serve, admission, metrics.requests, error_response),
                methods=["GET", "POST"],
            ),
            HttpRoute(
                wire.TRACES,
                AdmittedEndpoint("traces", traces, admission, metrics.requests, _traces_error),
                methods=["POST"],
            ),
            HttpRoute(wire.METRICS, scrape, methods=["GET"]),
        ],
        openapi=lambda: store_document(limits.max_body_bytes),
        open_paths=(*PAGES, wire.HEALTH, wire.METRICS),
        origins=origins,
        pages=pages,
    )


async def _answer(
    store: LightningStore, route: Route, ids: Mapping[str, str], request: Request, body: bytes, key: str
) -> StoreResponse:
    """Carry out a request; whatever goes wrong becomes a response."""
    try:
        query = request.query_params.multi_items()
        arguments = await off_loop(len(body), lambda: route.arguments_from(ids, query, body))
        check_counts(arguments if not route.pages else {**arguments, "limit": 0})
        if route.waits:
            arguments = route.held(arguments)
    except ValidationError as error:
        is_null = any(fault["input"] is None for fault in error.errors(include_url=False))
        return failure(400 if is_null else 422, _told(error), "ValueError")
    except TooManyItemsError as error:
        return failure(413, str(error), "ValueError")
    except ValueError as error:
        return failure(422, str(error), "ValueError")
    try:
        if route.pages and isinstance(store, LedgerStore):
            parts = page_in_parts(store, route.call, arguments)
            first, second = await anext(parts), await anext(parts, None)
            return StoreResponse(route.status, first, None if second is None else joined(second, parts))
        with carried_out_once(key) if key else nullcontext():
            result = await getattr(store, route.call)(**arguments)
        try:
            return StoreResponse(route.status, await _encoded(route, result, arguments))
        except ValueError:
            if route.call != "dequeue_many_rollouts":
                raise
            return StoreResponse(route.status, await _encoded(route, await _fail_unsendable(store, result), arguments))
    except LightningStoreError as error:
        logger.warning("%s: %s", route.call, error)
        return failure(503, str(error), "LightningStoreError")
    except NotImplementedError as error:
        return failure(501, str(error) or f"this store has no {route.call}", "NotImplementedError")
    except (ValueError, OverflowError) as error:
        return failure(400, str(error), "ValueError")
    except Exception:  # a fault of ours or of the store must end this response, not the server
        logger.exception("%s failed", route.call)
        return failure(500, "the store server failed to answer; its log says why", "InternalError")


async def _encoded(route: Route, result: Any, arguments: Mapping[str, Any]) -> bytes:
    if is_large(result):
        return await asyncio.to_thread(route.answer_of, result, arguments)
    return route.answer_of(result, arguments)


def _protobuf(status: int, body: bytes) -> Response:
    return Response(body, status, {"Retry-After": "1"} if status == 503 else None, PROTOBUF)


def _traces_error(error: HttpError) -> Response:
    # OpenTelemetry's exporters for Python send again after 503, and drop the spans after 429
    status = 503 if isinstance(error, OverloadedError) else error.status
    return Response(status_message(error.message), status, error.headers, PROTOBUF)


def _told(error: ValidationError) -> str:
    faults = (f"{'.'.join(map(str, fault['loc'])) or 'body'}: {fault['msg']}" for fault in error.errors())
    return "; ".join(faults)


async def _fail_unsendable(store: LightningStore, claimed: Sequence[AttemptedRollout]) -> list[AttemptedRollout]:
    """Return the claims that can be sent; fail the attempts of the others, with the reason in their metadata.

    A process that puts tasks into a store in memory, past its server, may put in what is not JSON.
    """
    sendable = []
    for rollout in claimed:
        try:
            encode(rollout, f"rollout {rollout.rollout_id}")
        except ValueError as error:
            logger.error("%s", error)
            await store.update_attempt(
                rollout.rollout_id, rollout.attempt.attempt_id, status="failed", metadata={"error": str(error)}
            )
        else:
            sendable.append(rollout)
    return sendable
