"""Check that a request may be served: by its key, or, where none is needed, by not coming from a foreign web page."""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from .errors import AuthenticationError

ANYBODY = ""
"""The key of a client where none is asked for."""


class ApiKeys:
    """The keys that are accepted; a client is known by the one that it sends.

    Args:
        keys: those accepted; none lets everybody in.
        bearer_only: take a key from `Authorization: Bearer KEY` alone, not from `x-api-key` too.
        hint: how a key is sent, for the message of a refusal.
    """

    def __init__(
        self,
        keys: Sequence[str],
        *,
        bearer_only: bool = False,
        hint: str = "'Authorization: Bearer KEY' or 'x-api-key: KEY'",
    ) -> None:
        self._keys = tuple(dict.fromkeys(keys))
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
        token = authorization.removeprefix("Bearer ")
        if self._bearer_only:
            return token if token != authorization else ""
        return token or headers.get("x-api-key", "")


def is_loopback(host: str) -> bool:
    """Return True if only this computer can reach the address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def is_from_web_page(headers: Mapping[str, str]) -> bool:
    """Return True if a web page of another site may have had the browser send this request.

    A server without keys listens on the loopback, where a browser can be told by any page to send it requests. Such a
    request has another site's `Origin`, or comes under a name that its owner could have pointed here (DNS rebinding).
    """
    host, origin = headers.get("host", ""), headers.get("origin")
    if origin is not None and origin.partition("://")[2] != host:
        return True
    try:
        name = urlsplit(f"//{host}").hostname or "localhost"
        return name != "localhost" and not ipaddress.ip_address(name)
    except ValueError:  # neither a name that stands for this computer nor an address
        return True
