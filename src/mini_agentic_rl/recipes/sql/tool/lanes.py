"""Processes that take turns at queries, in two lanes, so that a slow query delays slow ones alone.

Every query is tried for a moment in the quick lane. One that needs longer is begun again in the slow lane, with its
whole time: it loses a tenth of a second, and whoever asks for little never waits behind it. Nor does it wait for a
process that has to start, where another is up.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from ....processes import DeadlineProcess, DeadlineProcessError

QUICK_SECONDS: Final = 0.05
"""Processor time of a query in the quick lane, in seconds. That others have the processor makes no query slow."""
SLOW_NICENESS: Final = 5
"""Priority of the slow lane's processes: below that of the quick lane, and of whoever asks."""
QUICK: Final = 2
SLOW: Final = 4
"""Processes of each lane at most; one is started when all the others are busy."""


class BusyError(RuntimeError):
    """Report that no process became free in time."""


class Lane:
    """Up to `most` processes; the one used last is used next, and callers take turns in the order in which they came.

    The first process is started by its first question. Others start aside, and so does one that has died: meanwhile
    those that are up are asked.

    Args:
        make: makes a process, which is not started yet.
        most: processes at most.
    """

    def __init__(self, make: Callable[[], DeadlineProcess], most: int) -> None:
        self._make = make
        self._most = most
        self._all: list[DeadlineProcess] = []
        self._idle: list[DeadlineProcess] = []
        self._starting = 0
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
                if len(self._all) == 1 or taken.is_up:
                    self._idle.append(taken)
                else:
                    self._start_aside(taken)
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
                while self._turns[0] is not turn or not self._idle:
                    if self._turns[0] is turn and not self._starting and len(self._all) < self._most:
                        self._all.append(self._make())
                        if len(self._all) == 1:
                            return self._all[0]
                        self._start_aside(self._all[-1])
                    left = end - time.monotonic()
                    if left <= 0:
                        raise BusyError
                    self._changed.wait(left)
                return self._idle.pop()
            finally:
                self._turns.remove(turn)
                self._changed.notify_all()

    def _start_aside(self, process: DeadlineProcess) -> None:
        """Start a process in a thread of its own; called with the lock."""
        self._starting += 1
        threading.Thread(target=self._start, args=(process,), name="sql-process", daemon=True).start()

    def _start(self, process: DeadlineProcess) -> None:
        try:
            with contextlib.suppress(DeadlineProcessError):  # whoever asks it next hears why
                process.start()
        finally:
            with self._changed:
                self._starting -= 1
                self._idle.append(process)
                self._changed.notify_all()
