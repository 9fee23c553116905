"""Keep large buffers: glibc hands every big block back to the kernel, which then clears it again at the next use."""

from __future__ import annotations

import ctypes
import logging
import platform

logger = logging.getLogger(__name__)

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_LARGEST = 2**31 - 1


def keep_large_buffers() -> None:
    """Let freed memory of this process be used again instead of returned. Does nothing without glibc."""
    if platform.libc_ver()[0] != "glibc":
        return
    libc = ctypes.CDLL(None)
    if not (libc.mallopt(_M_MMAP_THRESHOLD, _LARGEST) and libc.mallopt(_M_TRIM_THRESHOLD, _LARGEST)):
        logger.debug("mallopt refused; large buffers go back to the kernel after each use")
