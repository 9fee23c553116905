"""The computer's processors and memory: how many processors this process may use, how many of them others leave free,
and how much memory it has held.

Torch is not needed.
"""

from __future__ import annotations

import gc
import os
import resource
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil


@dataclass(frozen=True)
class CoreUse:
    """Use of the processors over some time."""

    cores: float
    """Cores that this process may use."""
    free: float
    """Cores of these that others left free; it may use part of one."""


class CoreWatch:
    """Measures what others use of the processors, from its making or its last answer on.

    What this process and those that it has started use is not theirs.
    """

    def __init__(
        self,
        *,
        allowed: float | None = None,
        cores: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        busy: Callable[[], float] | None = None,
        own: Callable[[], float] | None = None,
    ) -> None:
        """
        Args:
            allowed: cores that this process may use; None asks the system, as do the others.
            cores: processors of the machine.
            clock: seconds that go by.
            busy: seconds that all processors together have computed, for whomever.
            own: seconds that they have computed for this process and those that it has started.
        """
        self._allowed = allowed_cores() if allowed is None else allowed
        self._cores = float(psutil.cpu_count() or 1) if cores is None else cores
        self._clock, self._busy, self._own = clock, busy or busy_seconds, own or seconds_of_family
        self._before = self._now()

    def use(self) -> CoreUse:
        """Return the use since the last answer, and begin to measure anew."""
        now = self._now()
        seconds, busy, own = (later - earlier for later, earlier in zip(now, self._before, strict=True))
        self._before = now
        others = max(0.0, busy - own) / seconds if seconds > 0 else 0.0
        return CoreUse(self._allowed, min(self._allowed, max(0.0, self._cores - others)))

    def _now(self) -> tuple[float, float, float]:
        return self._clock(), self._busy(), self._own()


def allowed_cores() -> float:
    """Return the cores that this process may use: by its affinity, and by the quota of its container."""
    allowed = float(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else psutil.cpu_count() or 1)
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
        return min(allowed, int(quota) / int(period))
    except (OSError, ValueError):  # another system, an older kernel, or "max"
        return allowed


def busy_seconds() -> float:
    """Return the seconds that all processors have been busy since the start, those taken by a host included."""
    times = psutil.cpu_times()._asdict()
    # Linux counts the time of guests in user time already.
    return float(sum(value for name, value in times.items() if name not in ("idle", "iowait", "guest", "guest_nice")))


def seconds_of_family() -> float:
    """Return the seconds that processors have computed for this process and those that it has started."""
    ended = os.times()
    seconds = time.process_time() + ended.children_user + ended.children_system
    for child in psutil.Process().children(recursive=True):
        try:
            used = child.cpu_times()
        except psutil.Error:  # it has ended meanwhile
            continue
        seconds += used.user + used.system
    return seconds


def peak_memory_bytes() -> int:
    """Return the most memory (bytes) that this process has held."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def pass_over_what_is_there() -> None:
    """Have the collector leave aside what has been loaded, which stays for as long as the process: a look through all
    classes and functions of large libraries would hold every request up, again and again.

    It is looked through once more for that, by a thread of its own: a signal of the main thread that came meanwhile
    would be raised, and lost, in whatever is being finalized.
    """
    threading.Thread(target=_pass_over, name="collector", daemon=True).start()


def _pass_over() -> None:
    gc.collect()
    gc.freeze()
