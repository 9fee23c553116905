"""Processors that this process may use and that other processes leave free, and Python's garbage collector."""

from __future__ import annotations

import gc
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import psutil


@dataclass(frozen=True)
class CoreUse:
    """Use of the processors over some time."""

    cores: float
    """Cores that this process may use; a fraction under the quota of a container."""
    free: float
    """Cores of these that other processes left free."""


class CoreWatch:
    """Measures how much of the processors other processes use, since it was made or last read.

    This process and its descendants do not count as others.
    """

    def __init__(self) -> None:
        self._allowed = allowed_cores()
        self._cores = psutil.cpu_count() or 1
        self._before = self._now()

    def use(self) -> CoreUse:
        """Return the use since the last call."""
        now = self._now()
        seconds, busy, family = (later - earlier for later, earlier in zip(now, self._before, strict=True))
        self._before = now
        others = max(0.0, busy - family) / seconds if seconds > 0 else 0.0
        return CoreUse(self._allowed, min(self._allowed, max(0.0, self._cores - others)))

    def _now(self) -> tuple[float, float, float]:
        """Return seconds of the clock, processor seconds of all processes, and those of this process's family."""
        return time.monotonic(), busy_seconds(), seconds_of_family()


def allowed_cores() -> float:
    """Return the cores that this process may use: by its affinity, and by the quota of its container."""
    allowed = float(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else psutil.cpu_count() or 1)
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
        return min(allowed, int(quota) / int(period))
    except (OSError, ValueError):  # another system, an older kernel, or "max"
        return allowed


def busy_seconds() -> float:
    """Return the processor seconds of all processes since the system started, with those that a host took."""
    times = psutil.cpu_times()._asdict()
    # Linux counts the time of guests in user time already.
    return float(sum(value for name, value in times.items() if name not in ("idle", "iowait", "guest", "guest_nice")))


def seconds_of_family() -> float:
    """Return the processor seconds of this process and its descendants."""
    ended = os.times()
    seconds = time.process_time() + ended.children_user + ended.children_system
    for child in psutil.Process().children(recursive=True):
        try:
            used = child.cpu_times()
        except psutil.Error:  # it has ended meanwhile
            continue
        seconds += used.user + used.system
    return seconds


def freeze_loaded_objects() -> None:
    """Exclude everything that is loaded by now from garbage collection.

    A full collection looks through all classes and functions of large libraries, which stay as long as the process, and
    delays every request meanwhile. The last such collection runs in a thread of its own: a signal handler that runs
    during a collection of the main thread may raise inside a finalizer, where its exception is lost.
    """

    def collect() -> None:
        gc.collect()
        gc.freeze()

    threading.Thread(target=collect, name="collector", daemon=True).start()
