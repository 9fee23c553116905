"""The time of day as a store may measure with it: since when it has gone as steadily as a clock that nobody sets.

Records hold the time of day, in seconds since the epoch, and so do limits. By how much somebody sets the clock, or for
how long a computer sleeps, is no time in which an attempt was silent: an interval counts from when the clock was last
seen to jump, and from the opening of the store, at the earliest. So no attempt loses time by a jump or by a restart; a
dead one may be found one interval later.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Final

_JUMP_SECONDS: Final = 1.0
_DRIFT: Final = 0.001
"""Share of the time between two looks by which a clock that is being corrected gently may go wrong."""


def steady() -> float:
    """Return seconds that go on evenly, whatever is done to the time of day."""
    return time.monotonic()


@dataclass(frozen=True)
class Now:
    """A look at the clock."""

    time: float
    """Seconds since the epoch."""
    since: float
    """The time, in the same seconds, from which on the clock can be relied on."""
    went_back: bool = False
    """True if it has been set back since the last scan."""


class StoreClock:
    """Look at the time of day and remember its jumps. Used from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._time, self._steady = time.time(), steady()
        self._since = self._steady
        self._jumped = self._went_back = False

    def jumped(self) -> bool:
        """Look at the clock, and return whether it has jumped since the last `look_for_scan`."""
        with self._lock:
            self._look()
            return self._jumped

    def look_for_scan(self) -> Now:
        """Return the time, for a look through all attempts."""
        with self._lock:
            self._look()
            now = Now(self._time, self._time - (self._steady - self._since), self._went_back)
            self._jumped = self._went_back = False
            return now

    def _look(self) -> None:
        now, even = time.time(), steady()
        passed = even - self._steady
        jump = now - self._time - passed
        if abs(jump) > _JUMP_SECONDS + _DRIFT * passed:
            self._since = even
            self._jumped = True
            self._went_back |= jump < 0
        self._time, self._steady = now, even
