"""Measure the memory that this process has held at most."""

from __future__ import annotations

import resource
import sys


def peak_memory_bytes() -> int:
    """Return the most memory (bytes) that this process has held."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
