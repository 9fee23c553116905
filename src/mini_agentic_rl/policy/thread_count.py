"""The number of threads that compute: as many as there are cores that nobody else is using.

A product is cut into equal parts, one for each thread, and ends with the last of them. A thread whose core another
process is using comes late, thousands of times a second, and all others wait. One thread fewer is then faster: it has a
core of its own. So what others use is measured about twice a second, and the number of threads follows.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import Final

import psutil
import torch

from ..processes import allowed_cores, busy_seconds

_WINDOW: Final = 0.5
"""Seconds over which the use of the cores is measured."""
_ENOUGH: Final = 0.65
"""Share of a core that has to be free for a thread to pay."""


class ThreadCount:
    """Keeps torch's number of threads to what the machine gives, and never above what it was at first.

    `adapt` is called where computing could go on with another number: before a forward pass, before a chunk.
    """

    def __init__(
        self,
        *,
        cores: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        busy: Callable[[], float] | None = None,
        own: Callable[[], float] = time.process_time,
    ) -> None:
        """
        Args:
            cores: processors of the machine; None asks the system, as do the others.
            clock: seconds that go by.
            busy: seconds that all processors together have computed, for whomever.
            own: seconds that they have computed for this process.
        """
        self._cores = float(psutil.cpu_count() or 1) if cores is None else cores
        self._clock, self._busy, self._own = clock, busy or busy_seconds, own
        # Chosen by torch, by OMP_NUM_THREADS or by the program.
        self._most = min(torch.get_num_threads(), max(1, int(allowed_cores() + 1 - _ENOUGH)))
        self._chosen = self._most
        self._before = (self._clock(), self._busy(), self._own())

    def fix(self) -> None:
        """Stay with the number that there is: how a sum is cut decides how it is rounded."""
        self._most = 0

    def adapt(self) -> None:
        """Set the number of threads for what the calling thread computes next."""
        if self._most < 2:
            return
        at, busy, own = now = (self._clock(), self._busy(), self._own())
        seconds = at - self._before[0]
        if seconds >= _WINDOW:
            others = (busy - self._before[1] - (own - self._before[2])) / seconds
            free = self._cores - max(others, 0.0)
            self._chosen = max(1, min(self._most, int(free + 1 - _ENOUGH)))
            self._before = now
        if torch.get_num_threads() != self._chosen:
            torch.set_num_threads(self._chosen)


def take_share(ranks: int, environment: Mapping[str, str] = os.environ) -> None:
    """Let the calling thread compute with its share of the cores, where so many ranks share them.

    A number that was chosen by OMP_NUM_THREADS stays; torchrun sets 1 where nothing was chosen.
    """
    chosen = environment.get("OMP_NUM_THREADS")
    if chosen is None or (chosen == "1" and "TORCHELASTIC_RUN_ID" in environment):
        torch.set_num_threads(max(1, int(allowed_cores() / ranks)))
