"""Free pages of the heap, which glibc keeps for later unless it is told to hand them back."""

from __future__ import annotations

import ctypes
import platform


def release_free_memory() -> None:
    """Hand the heap's free pages back to the system; without glibc do nothing.

    Buffers of ever different sizes make the heap grow by gigabytes over a run. But a page that was handed back costs a
    fault when it is used again, so this is done where sampling and learning take turns, and seldom in between.
    """
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)
