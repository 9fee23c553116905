"""The API keys that a gateway accepts."""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence

from ..errors import AuthenticationError

ANYBODY = ""
"""The key of a client where none is asked for."""


class ApiKeys:
    """Knows its clients by the key that they send.

    Args:
        keys: those accepted; none lets everybody in.
    """

    def __init__(self, keys: Sequence[str]) -> None:
        self._keys = tuple(dict.fromkeys(keys))

    @property
    def first(self) -> str | None:
        """A key for agents that are told of the endpoint; None where none is asked for."""
        return self._keys[0] if self._keys else None

    def check(self, headers: Mapping[str, str]) -> str:
        """The key that a request carries; `ANYBODY` where none is asked for.

        Raises:
            AuthenticationError: it carries none of those accepted.
        """
        if not self._keys:
            return ANYBODY
        given = headers.get("authorization", "").removeprefix("Bearer ") or headers.get("x-api-key", "")
        # All are compared, each in constant time: how long it takes tells nothing of a key.
        found = [key for key in self._keys if hmac.compare_digest(given.encode(), key.encode())]
        if not found:
            raise AuthenticationError(
                "wrong or missing API key: send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'",
                code="invalid_api_key",
            )
        return found[0]
