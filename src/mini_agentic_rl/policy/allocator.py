"""Memory between turns: what learning has freed goes back to the system before sampling goes on."""

from __future__ import annotations

import ctypes
import platform


def release_free_memory() -> None:
    """Hand the heap's free pages back. glibc keeps them otherwise, and buffers of ever different sizes make the heap
    grow by gigabytes over a run. Does nothing without glibc."""
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)
