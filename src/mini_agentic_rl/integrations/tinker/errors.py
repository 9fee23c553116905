"""Errors of requests whose answer is fetched later: the client raises them when it waits for the result."""

from __future__ import annotations

from typing import Final, Literal

GONE: Final = (
    "these weights are gone: their checkpoint was removed, or they had no name and were not used for long "
    "(max_snapshots)"
)
UNREADABLE: Final = "these weights cannot be read: they are damaged, or were overwritten meanwhile; its log says which"


class RefusedError(Exception):
    """A request cannot be done as it is; `category` says whose fault that is."""

    def __init__(self, text: str, *, category: Literal["user", "server"] = "user") -> None:
        super().__init__(text)
        self.category = category


class NoWeightsError(RefusedError):
    """There are no weights under a path of a client, or they are gone since."""
