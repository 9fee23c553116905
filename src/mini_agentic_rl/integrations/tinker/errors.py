"""Errors of requests whose answer is fetched later: the client raises them when it waits for the result."""

from __future__ import annotations

from typing import Literal


class RefusedError(Exception):
    """A request cannot be done as it is; `category` says whose fault that is."""

    def __init__(self, text: str, *, category: Literal["user", "server"] = "user") -> None:
        super().__init__(text)
        self.category = category
