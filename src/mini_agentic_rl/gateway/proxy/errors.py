"""What can go wrong between the proxy and a server of others, each naming the server."""

from __future__ import annotations

from typing import Any, Final

import httpx

from ...http import json_object
from ..errors import BadRequestError, GatewayError
from .upstream import Upstream

_OF_THE_MODEL_LIST: Final = frozenset({401, 403, 404, 405})
_SHOWN_CHARACTERS: Final = 500


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
    """The server refused the request: its own status and words, for the dialect that the agent speaks.

    The words say whose they are where they may be about the model list (the key, the URL or the model's name there),
    not about the request, and where they are no error object.

    Args:
        upstream: the server.
        answer: its answer; what of its body has come is read.
        content: that body.
    """

    def __init__(self, upstream: Upstream, answer: httpx.Response, content: bytes) -> None:
        try:
            told = json_object(content).get("error")
        except BadRequestError:
            told = None
        error = told if isinstance(told, dict) else {}
        message = error.get("message")
        if not isinstance(message, str) or answer.status_code in _OF_THE_MODEL_LIST:
            text = message if isinstance(message, str) else content.decode("utf-8", "replace")[:_SHOWN_CHARACTERS]
            message = (
                f"{upstream.base_url} refused what it was asked for {upstream.name!r} of the model list with status "
                f"{answer.status_code}" + (f": {text}" if text else "")
            )
        super().__init__(
            message,
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
