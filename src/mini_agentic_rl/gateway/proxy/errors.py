"""What can go wrong between the proxy and a server of others, each naming the server."""

from __future__ import annotations

from typing import Any

import httpx

from ..errors import GatewayError


class UpstreamUnreachableError(GatewayError):
    """No server of this model could be reached."""

    status = 503


class UpstreamBrokenError(GatewayError):
    """The server broke off its answer, or answered what is none."""

    status = 502


class UpstreamSilentError(GatewayError):
    """Nothing was heard of the server for as long as it may be silent."""

    status = 504


class UpstreamRefusedError(GatewayError):
    """The server refused the request: its own status and words, for the dialect that the agent speaks."""

    def __init__(self, answer: httpx.Response, error: dict[str, Any], text: str) -> None:
        message = error.get("message")
        super().__init__(
            message if isinstance(message, str) else text,
            param=_text(error.get("param")),
            code=_text(error.get("code")),
            kind=_text(error.get("type")) or ("server_error" if answer.status_code >= 500 else "invalid_request_error"),
        )
        self.status = answer.status_code
        self._retry_after = answer.headers.get("retry-after")

    def headers(self) -> dict[str, str]:
        return {} if self._retry_after is None else {"Retry-After": self._retry_after}


def _text(value: Any) -> str | None:
    return None if value is None else str(value)
