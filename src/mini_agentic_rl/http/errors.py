"""Errors of requests to any server: an HTTP status, a message, and headers to send along."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ..errors import UserError


class ServerStartError(UserError, RuntimeError):
    """The server could not start."""


_KINDS: Final = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
"""OpenAI's type of an error by its status; for other statuses it is `invalid_request_error` or `server_error`."""


class HttpError(Exception):
    """An error that is sent to the client.

    Args:
        message: What is wrong, for a person.
        param: The wrong field of the request.
        code: A short name of the error, for programs.
        kind: OpenAI's type of the error; by default that of its class, or else of its status.
        status: HTTP status; by default that of the class.
        headers: Headers to send along.
    """

    status = 500
    kind = ""

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
        self.status = status or self.status
        default = _KINDS.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        self.kind = kind or self.kind or default
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


class AuthenticationError(HttpError):
    """The bearer token is missing or wrong."""

    status = 401


class ForbiddenError(HttpError):
    """Requests from this origin are refused."""

    status = 403


class NotServedError(HttpError):
    """The path, or the method for it, is unknown."""

    def __init__(self, method: str, path: str, status: int = 404, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(f"{method} {path} is not served here", status=status, headers=headers)


class BodyTooLargeError(HttpError):
    """The request's body is too large."""

    status = 413

    def __init__(self, limit: int) -> None:
        super().__init__(f"the body exceeds {limit} bytes: send less at once, or raise max_body_bytes of the server")


class UnsupportedEncodingError(HttpError):
    """The encoding or the content type of the body is not supported."""

    status = 415


class OverloadedError(HttpError):
    """The server admits no more requests for now."""

    status = 429

    def __init__(self, message: str, *, retry_after: float = 1.0) -> None:
        super().__init__(message, code="rate_limit_exceeded", headers={"Retry-After": f"{retry_after:g}"})


class DrainingError(HttpError):
    """The server is about to stop and admits no new requests."""

    status = 503

    def __init__(self) -> None:
        headers = {"Retry-After": "5", "Connection": "close"}
        super().__init__("the server is stopping; try again in a moment", code="server_stopping", headers=headers)
