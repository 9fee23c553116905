"""Requests per minute, as a token bucket for each key: a full bucket allows a minute's worth at once."""

from __future__ import annotations

import time
from collections.abc import Callable


class RequestRate:
    """Used from one event loop.

    Args:
        per_minute: how many requests a key may make in a minute.
        clock: seconds that never go back.
    """

    def __init__(self, per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._size = float(per_minute)
        self._per_second = per_minute / 60.0
        self._clock = clock
        self._buckets: dict[str, tuple[float, float]] = {}
        """For each key: what is left in its bucket, and when that was so."""

    def take(self, key: str) -> float:
        """Take one request of a key; 0 if it may pass, else the seconds after which the next one may."""
        now = self._clock()
        left, since = self._buckets.get(key, (self._size, now))
        left = min(self._size, left + (now - since) * self._per_second)
        passes = left >= 1.0
        self._buckets[key] = (left - 1.0 if passes else left, now)
        return 0.0 if passes else (1.0 - left) / self._per_second
