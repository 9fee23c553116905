"""How much memory this process has needed."""

from __future__ import annotations

import resource
import sys


def peak_memory_bytes() -> int:
    """The most memory this process has held."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
