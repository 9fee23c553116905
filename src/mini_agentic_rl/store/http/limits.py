"""Bounds on the requests that a store server takes: those of every server, with room for the spans of a batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final

from ...http import RequestLimits


class StoreLimits(RequestLimits):
    """Bounds on the requests of runners and algorithms; one that waits for work or for an end takes no place meanwhile.

    Clients of the store come again after a refusal.
    """

    defaults: ClassVar[Mapping[str, Any]] = {"max_body_bytes": 32 * 2**20}


MOST_ITEMS: Final = 65_536
"""Rollouts, spans or ids that one request brings, or claims."""


class TooManyItemsError(ValueError):
    """A request brings or claims more than `MOST_ITEMS`."""


def check_counts(arguments: Mapping[str, Any]) -> None:
    """Check the lists of a request, and how many rollouts it claims.

    Raises:
        TooManyItemsError: it is more than `MOST_ITEMS`; the message names the argument.
    """
    for name, value in arguments.items():
        count = len(value) if isinstance(value, list | dict) else value if name == "limit" else 0
        if count > MOST_ITEMS:
            raise TooManyItemsError(f"{name}: {count} are too many, at most {MOST_ITEMS} in one request")
