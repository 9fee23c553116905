"""Bounds on the requests that a store server takes: those of every server, with room for the spans of a batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from ...http import RequestLimits


class StoreLimits(RequestLimits):
    """Bounds on the requests of runners and algorithms; one that waits for work or for an end takes no place meanwhile.

    Clients of the store come again after a refusal.
    """

    defaults: ClassVar[Mapping[str, Any]] = {"max_body_bytes": 32 * 2**20}
