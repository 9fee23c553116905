"""What the gateway's applications have in common: keys, bounded bodies, rollout URLs, OpenAI's error shape."""

from __future__ import annotations

import hmac
import logging
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, TypeAlias

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from .dialects.base import encode
from .errors import AuthenticationError, BodyTooLargeError, GatewayError

logger = logging.getLogger(__name__)

Endpoint: TypeAlias = Callable[[Request], Awaitable[Response]]
Refusal: TypeAlias = Callable[[GatewayError], dict[str, Any]]
"""The body that tells of an error."""

MAX_BODY_BYTES: Final = 16 * 1024 * 1024
CLIENT_CLOSED_REQUEST: Final = 499
ROLLOUT_PREFIX: Final = "/rollout/{rollout_id}/attempt/{attempt_id}"


def new_app(title: str, lifespan: Callable[[FastAPI], AbstractAsyncContextManager[None]] | None = None) -> FastAPI:
    """An application that answers an unknown path in OpenAI's error shape; `lifespan` is open while it serves."""
    app = FastAPI(title=title, docs_url=None, redoc_url=None, openapi_url=None, lifespan=lifespan)
    app.add_exception_handler(HTTPException, _no_such_path)
    return app


def add_route(app: FastAPI, path: str, endpoint: Endpoint, method: str, refusal: Refusal = GatewayError.body) -> None:
    """Serve `endpoint` at `path`, and once more under each attempt's own URL; `refusal` tells of its failures."""
    for prefix in ("", ROLLOUT_PREFIX):
        app.add_route(prefix + path, _guarded(endpoint, refusal), methods=[method])


def check_key(request: Request, api_key: str | None) -> None:
    """Refuse a request without the key.

    Raises:
        AuthenticationError: a key is asked for, and the request does not carry it.
    """
    if api_key is None:
        return
    given = request.headers.get("authorization", "").removeprefix("Bearer ") or request.headers.get("x-api-key", "")
    if not hmac.compare_digest(given.encode(), api_key.encode()):
        raise AuthenticationError(
            "wrong or missing API key: send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'",
            code="invalid_api_key",
        )


def scope_of(request: Request) -> tuple[str, str] | None:
    """(rollout id, attempt id) of the URL; None under the plain one."""
    rollout_id = request.path_params.get("rollout_id")
    return None if rollout_id is None else (rollout_id, request.path_params["attempt_id"])


async def body_of(request: Request, limit: int) -> bytes:
    """The body.

    Raises:
        BodyTooLargeError: it has more than `limit` bytes.
    """
    parts = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > limit:
            raise BodyTooLargeError(f"the request's body exceeds {limit} bytes")
        parts.append(part)
    return b"".join(parts)


def json_response(value: dict[str, Any]) -> Response:
    """An answer of compact JSON."""
    return Response(encode(value), media_type="application/json")


def _guarded(endpoint: Endpoint, refusal: Refusal) -> Endpoint:
    """The endpoint with every failure turned into an answer that tells of it."""

    async def call(request: Request) -> Response:
        try:
            return await endpoint(request)
        except GatewayError as error:
            return _refused(error, refusal)
        except ClientDisconnect:
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        except Exception:  # a fault of ours or of the backend must end this answer, not the server
            logger.exception("%s %s failed", request.method, request.url.path)
            return _refused(GatewayError("the server failed to answer; its log says why"), refusal)

    return call


def _refused(error: GatewayError, refusal: Refusal) -> Response:
    return Response(encode(refusal(error)), error.status, headers=error.headers(), media_type="application/json")


async def _no_such_path(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    refusal = GatewayError(f"{request.method} {request.url.path} is not served here", kind="invalid_request_error")
    return Response(encode(refusal.body()), status, media_type="application/json")
