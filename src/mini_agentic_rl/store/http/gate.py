"""Who may ask the store server anything at all."""

from __future__ import annotations

import hmac
import ipaddress
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from . import wire
from .answers import failure, response_of

_NO_KEY: Final = failure(
    401, "wrong or missing API key: send it as 'Authorization: Bearer KEY' (AGL_API_KEY)", "Unauthorized"
)
_WEB_PAGE: Final = failure(
    403, "without an API key, only requests to localhost or an IP address and from no web page are taken", "Forbidden"
)


class Gate:
    """Lets a request through if it carries the key; asking for the health needs none.

    A server without a key listens on the loopback only, and there a browser may be told by any web page to send it
    requests: those that a page of another site sends, or under a name that its owner could have pointed here, are
    refused.

    Args:
        app: What is behind the gate.
        api_key: The bearer token; None: none is needed.
    """

    def __init__(self, app: ASGIApp, api_key: str | None) -> None:
        self._app = app
        self._expected = None if api_key is None else f"Bearer {api_key}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] == wire.HEALTH:
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        if self._expected is None:
            if _is_of_a_web_page(headers):
                await response_of(_WEB_PAGE)(scope, receive, send)
                return
        elif not hmac.compare_digest(headers.get("authorization", "").encode("latin-1"), self._expected):
            refusal = response_of(_NO_KEY)
            refusal.headers["WWW-Authenticate"] = "Bearer"
            await refusal(scope, receive, send)
            return
        await self._app(scope, receive, send)


def is_loopback(host: str) -> bool:
    """Whether only this computer can reach the address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _is_of_a_web_page(headers: Headers) -> bool:
    host, origin = headers.get("host", ""), headers.get("origin")
    if origin is not None and origin.partition("://")[2] != host:
        return True
    try:
        name = urlsplit(f"//{host}").hostname or "localhost"
        return name != "localhost" and not ipaddress.ip_address(name)
    except ValueError:  # neither a name that stands for this computer nor an address
        return True
