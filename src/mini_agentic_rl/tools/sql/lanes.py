"""Processes that take turns at queries, in two lanes, so that a slow query delays slow ones alone.

Every query is tried for a moment in the quick lane. One that needs longer is begun again in the slow lane, with its
whole time: it loses a tenth of a second, and whoever asks for little never waits behind it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from ...deadline_process import DeadlineProcess

QUICK_SECONDS: Final = 0.1
"""Seconds that a query may take in the quick lane."""
QUICK: Final = 2
SLOW: Final = 4
"""Processes of each lane at most; one is started when all the others are busy."""


class BusyError(RuntimeError):
    """Report that no process became free in time."""


class Lane:
    """Up to `most` processes; the one used last is used next, and callers take turns in the order in which they came.

    Args:
        make: makes a process, which starts at its first question.
        most: processes at most.
    """

    def __init__(self, make: Callable[[], DeadlineProcess], most: int) -> None:
        self._make = make
        self._most = most
        self._all: list[DeadlineProcess] = []
        self._idle: list[DeadlineProcess] = []
        self._turns: deque[object] = deque()
        self._changed = threading.Condition()

    @contextmanager
    def process(self, within_seconds: float) -> Iterator[DeadlineProcess]:
        """Have a process for as long as the block lasts.

        Raises:
            BusyError: none became free within this time.
        """
        taken = self._taken(time.monotonic() + within_seconds)
        try:
            yield taken
        finally:
            with self._changed:
                self._idle.append(taken)
                self._changed.notify_all()

    def close(self) -> None:
        """End all processes; the next question starts one again."""
        with self._changed:
            processes = list(self._all)
        for process in processes:
            process.close()

    def _taken(self, end: float) -> DeadlineProcess:
        turn = object()
        with self._changed:
            self._turns.append(turn)
            try:
                while self._turns[0] is not turn or (not self._idle and len(self._all) == self._most):
                    left = end - time.monotonic()
                    if left <= 0:
                        raise BusyError
                    self._changed.wait(left)
                if self._idle:
                    return self._idle.pop()
                made = self._make()
                self._all.append(made)
                return made
            finally:
                self._turns.remove(turn)
                self._changed.notify_all()
