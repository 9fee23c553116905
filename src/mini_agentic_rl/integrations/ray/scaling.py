"""The number of runners for what there is to run: more of them at once, fewer only after a while."""

from __future__ import annotations

from collections import deque


class Scaling:
    """As many runners as there are unfinished rollouts, within bounds.

    The number falls once fewer have been enough for `idle_seconds`, to the most that were needed in that time: between
    two steps of a training nothing is queued, and whoever ends then has to be started again soon.
    """

    def __init__(self, least: int, most: int, idle_seconds: float) -> None:
        self.least = min(least, most)
        self.most = most
        self._idle_seconds = idle_seconds
        self._needs: deque[tuple[float, int]] = deque()
        """Times and needs, none of which is below a later one; the first is the greatest of the last `idle_seconds`."""

    def wanted(self, unfinished: int, now: float) -> int:
        """Return the number of runners that there should be at the time `now`, in seconds of a steady clock."""
        need = min(max(unfinished, self.least), self.most)
        while self._needs and self._needs[-1][1] <= need:
            self._needs.pop()
        self._needs.append((now, need))
        while self._needs[0][0] < now - self._idle_seconds:
            self._needs.popleft()
        return self._needs[0][1]
