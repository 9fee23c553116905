"""Check that a request may be served: by its key, or, where none is needed, by not coming from a foreign web page."""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from .errors import AuthenticationError, ForbiddenError, HttpError, ServerStartError

ANYBODY = ""
"""The key of a client where none is asked for."""


def checked_keys(keys: Sequence[str]) -> tuple[str, ...]:
    """Return the API keys of a server, each once.

    Raises:
        ServerStartError: one is empty, which every request without a key would carry.
    """
    if not all(key.strip() for key in keys):
        raise ServerStartError(
            "an API key is empty, as one from an unset variable is: give one, or leave the setting out to ask for none",
            setting="api_key",
        )
    return tuple(dict.fromkeys(keys))


class ApiKeys:
    """The keys that are accepted; a client is known by the one that it sends.

    Args:
        keys: those accepted; none lets everybody in.
        bearer_only: take a key from `Authorization: Bearer KEY` alone, not from `x-api-key` too.
        hint: how a key is sent, for the message of a refusal.

    Raises:
        ServerStartError: a key is empty.
    """

    def __init__(
        self,
        keys: Sequence[str],
        *,
        bearer_only: bool = False,
        hint: str = "'Authorization: Bearer KEY' or 'x-api-key: KEY'",
    ) -> None:
        self._keys = checked_keys(keys)
        self._bearer_only = bearer_only
        self._hint = hint

    @property
    def first(self) -> str | None:
        """A key for agents that are told of the endpoint; None where none is asked for."""
        return self._keys[0] if self._keys else None

    def check(self, headers: Mapping[str, str]) -> str:
        """Return the key that a request carries; `ANYBODY` where none is asked for.

        Raises:
            AuthenticationError: it carries none of those accepted.
        """
        if not self._keys:
            return ANYBODY
        given = self._given(headers).encode("latin-1")  # as it came: ASGI servers decode headers so
        # All are compared, each in constant time: how long it takes tells nothing of a key.
        found = [key for key in self._keys if hmac.compare_digest(given, key.encode())]
        if not found:
            raise AuthenticationError(f"wrong or missing API key: send it as {self._hint}", code="invalid_api_key")
        return found[0]

    def _given(self, headers: Mapping[str, str]) -> str:
        authorization = headers.get("authorization", "")
        scheme, _, token = authorization.partition(" ")
        bearer = scheme.lower() == "bearer"  # RFC 9110: in any case
        if self._bearer_only:
            return token.lstrip(" ") if bearer else ""
        return (token.lstrip(" ") if bearer else authorization) or headers.get("x-api-key", "")


def is_loopback(host: str) -> bool:
    """Return True if only this computer can reach the address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check_address(host: str, keys: ApiKeys) -> None:
    """Check that a server which other computers can reach asks for a key.

    Raises:
        ServerStartError: it does not.
    """
    if keys.first is None and not is_loopback(host):
        raise ServerStartError(
            f"listening on {host} lets other computers in: set an API key (`api_key`), or listen on `host=127.0.0.1`",
            setting="host",
        )


class AccessCheck:
    """Refuse what a web page of another site may have had a browser send to a server without keys, on every path; and
    what carries no key, on every path but some.

    Args:
        app: the application behind it.
        keys: those of the server; where there are any, a page would have to know one.
        respond: makes the response that tells of a refusal.
        open_paths: paths that are served without a key; None leaves it to the endpoints to ask for one.
        origins: pages that may send requests all the same; `*` means every page.
    """

    def __init__(
        self,
        app: ASGIApp,
        keys: ApiKeys,
        respond: Callable[[HttpError], Response],
        open_paths: Collection[str] | None = None,
        origins: Collection[str] = (),
    ) -> None:
        self._app = app
        self._keys = keys
        self._respond = respond
        self._open_paths = open_paths
        self._origins = frozenset(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                self._check(scope["path"], Headers(scope=scope))
            except HttpError as error:
                await self._respond(error)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _check(self, path: str, headers: Headers) -> None:
        if self._open_paths is not None and path not in self._open_paths:
            self._keys.check(headers)
        invited = "*" in self._origins or headers.get("origin") in self._origins
        if self._keys.first is None and not invited and is_from_web_page(headers):
            raise ForbiddenError(_NO_PAGES)


_NO_PAGES: Final = "without an API key, only requests to localhost or an IP address and from no web page are taken"
_OWN_SITE: Final = ("none", "same-origin")
"""What a browser says of a request that its user made, or a page of this server."""


def is_from_web_page(headers: Mapping[str, str]) -> bool:
    """Return True if a web page of another site may have had the browser send this request.

    A server without keys listens on the loopback, where a browser can be told by any page to send it requests. Such a
    request has another site's `Origin`, which a GET comes without, or another `Sec-Fetch-Site`, or comes under a name
    that its owner could have pointed here (DNS rebinding).
    """
    host, origin = headers.get("host", ""), headers.get("origin")
    if origin is not None and origin.partition("://")[2] != host:
        return True
    if headers.get("sec-fetch-site", "none") not in _OWN_SITE:
        return True
    try:
        name = urlsplit(f"//{host}").hostname or "localhost"
        return name != "localhost" and not ipaddress.ip_address(name)
    except ValueError:  # neither a name that stands for this computer nor an address
        return True
