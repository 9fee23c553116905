"""Bounds of a process, its priority and its files, as far as the operating system has them.

| | Linux | macOS | Windows |
|---|---|---|---|
| memory | kernel (`RLIMIT_AS`) | parent watches | parent watches |
| files written | kernel (`RLIMIT_FSIZE`) | kernel | unbounded |
| time | parent kills | parent kills | parent kills |

Where the kernel has no bound on memory, a `DeadlineProcess` compares the resident memory of its process with the bound
20 times a second.
"""

from __future__ import annotations

import os
import sys
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
