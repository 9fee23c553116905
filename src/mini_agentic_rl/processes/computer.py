"""Memory, files and processors: bounds of this process, its use of the computer, and that of others.

| | Linux | macOS | Windows |
|---|---|---|---|
| memory | kernel (`RLIMIT_AS`) | parent watches | parent watches |
| files written | kernel (`RLIMIT_FSIZE`) | kernel | unbounded |
| time | parent kills | parent kills | parent kills |

Where the kernel has no bound on memory, a `DeadlineProcess` compares the resident memory of its process with the bound
20 times a second.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

if sys.platform != "win32":
    import resource

MEMORY_IS_BOUNDED: Final = sys.platform == "linux"
"""True if the kernel can bound the memory of a process. macOS accepts `RLIMIT_AS` and ignores it, or refuses it."""


_watched_mib: int | None = None


def bound_memory(max_memory_mib: int) -> None:
    """Let this process take at most so much more memory: an allocation beyond it fails.

    Where the kernel cannot bound memory, the bound is left to the parent (see `memory_to_watch`).
    """
    global _watched_mib
    if not MEMORY_IS_BOUNDED:
        _watched_mib = max_memory_mib
    elif sys.platform != "win32":
        allowed = psutil.Process().memory_info().vms + (max_memory_mib << 20)
        resource.setrlimit(resource.RLIMIT_AS, (allowed, allowed))


def memory_to_watch() -> int | None:
    """Return the bound (MiB) that the parent of this process has to watch; None if there is none."""
    return _watched_mib


def confine(max_memory_mib: int) -> None:
    """From here on this process writes no file and takes at most so much more memory, where the system bounds that."""
    if sys.platform != "win32":
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    bound_memory(max_memory_mib)


def lower_priority(niceness: int) -> None:
    """Give the processor to others first; 0 changes nothing, 19 is the lowest priority."""
    if sys.platform != "win32":
        os.nice(niceness)
    elif niceness > 0:
        psutil.Process().nice(psutil.BELOW_NORMAL_PRIORITY_CLASS)


def max_open_files() -> int | None:
    """Return how many files and sockets this process may have open; None if there is no limit."""
    if sys.platform == "win32":
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


def peak_memory_bytes() -> int:
    """Return the most memory (bytes) that this process has held."""
    if sys.platform == "win32":
        memory = psutil.Process().memory_info()
        return int(getattr(memory, "peak_wset", memory.rss))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def resident_bytes(pid: int) -> int:
    """Return the memory that a process holds now; 0 if it has ended."""
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return 0


def weaker_bounds() -> list[str]:
    """Return the bounds that are weaker on this operating system than on Linux, one sentence each."""
    sentences = []
    if not MEMORY_IS_BOUNDED:
        sentences.append("the memory of helper processes is checked 20 times a second and not by the kernel")
    if sys.platform == "win32":
        sentences.append("helper processes may write files")
    if not hasattr(os, "fork"):
        sentences.append("a grammar has the limit of its compilation in seconds of the clock and not of the processor")
    return sentences


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
