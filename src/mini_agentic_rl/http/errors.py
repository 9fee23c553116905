"""Errors of requests to any server: an HTTP status, a message, and headers to send along."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import UserError


class ServerStartError(UserError, RuntimeError):
    """The server could not start."""


class HttpError(Exception):
    """An error that is sent to the client.

    Args:
        message: What is wrong, for a person.
        param: The wrong field of the request.
        code: A short name of the error, for programs.
        kind: OpenAI's type of the error; by default that of the class.
        status: HTTP status; by default that of the class.
        headers: Headers to send along.
    """

    status = 500
    kind = "server_error"

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        kind: str | None = None,
        status: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.kind = kind or self.kind
        self.status = status or self.status
        self.message = message
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        """Return OpenAI's error object, the body of the response."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}


class BadRequestError(HttpError):
    """The request is wrong; `param` names the field."""

    status = 400
    kind = "invalid_request_error"


class AuthenticationError(HttpError):
    """The bearer token is missing or wrong."""

    status = 401
    kind = "authentication_error"


class ForbiddenError(HttpError):
    """Requests from this origin are refused."""

    status = 403
    kind = "permission_error"


class NotServedError(HttpError):
    """The path, or the method for it, is unknown."""

    kind = "invalid_request_error"

    def __init__(self, method: str, path: str, status: int = 404, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(f"{method} {path} is not served here", status=status, headers=headers)


class BodyTooLargeError(HttpError):
    """The request's body is too large."""

    status = 413
    kind = "invalid_request_error"

    def __init__(self, limit: int) -> None:
        super().__init__(f"the body exceeds {limit} bytes: send less at once, or raise max_body_bytes of the server")


class BodyTooSlowError(HttpError):
    """The request's body did not arrive in time."""

    status = 408
    kind = "invalid_request_error"

    def __init__(self, seconds: float) -> None:
        message = f"the body did not arrive within {seconds:g} seconds (max_body_seconds)"
        super().__init__(message, headers={"Connection": "close"})


class UnsupportedEncodingError(HttpError):
    """The encoding or the content type of the body is not supported."""

    status = 415
    kind = "invalid_request_error"


class OverloadedError(HttpError):
    """The server admits no more requests for now."""

    status = 429
    kind = "rate_limit_error"

    def __init__(self, message: str = "The server is busy; try again shortly.", *, retry_after: float = 1.0) -> None:
        super().__init__(message, code="rate_limit_exceeded", headers={"Retry-After": f"{retry_after:g}"})


class DrainingError(HttpError):
    """The server is about to stop and admits no new requests."""

    status = 503

    def __init__(self) -> None:
        headers = {"Retry-After": "5", "Connection": "close"}
        super().__init__("the server is stopping; try again in a moment", code="server_stopping", headers=headers)
