"""Threads of torch, caches of oneDNN, free memory, and copies to a device."""

from __future__ import annotations

import ctypes
import os
import platform
import time
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import psutil
import torch
from torch import Tensor

from ..processes import allowed_cores, busy_seconds

_WINDOW: Final = 0.5
"""Seconds over which the use of the cores is measured."""
_ENOUGH: Final = 0.65
"""Share of a core that has to be free for a thread to pay."""


class ThreadCount:
    """Limit torch's number of threads to the cores that no other process uses, and to the initial number.

    A matrix product is divided into equal parts, one for each thread. A thread that shares its core with another
    process is late, and all others wait for it: one thread fewer is then faster. `adapt` is called before a forward
    pass and before a chunk.
    """

    def __init__(self) -> None:
        self._cores = float(psutil.cpu_count() or 1)
        # The number of threads that torch, OMP_NUM_THREADS or the program has set.
        self._most = min(torch.get_num_threads(), max(1, int(allowed_cores() + 1 - _ENOUGH)))
        self._chosen = self._most
        self._before = _times()

    def fix(self) -> None:
        """Keep the current number: the rounding of sums depends on it."""
        self._most = 0

    def adapt(self) -> None:
        """Set the number of threads of the calling thread."""
        if self._most < 2:
            return
        at, busy, own = now = _times()
        seconds = at - self._before[0]
        if seconds >= _WINDOW:
            others = (busy - self._before[1] - (own - self._before[2])) / seconds
            free = self._cores - max(others, 0.0)
            self._chosen = max(1, min(self._most, int(free + 1 - _ENOUGH)))
            self._before = now
        if torch.get_num_threads() != self._chosen:
            torch.set_num_threads(self._chosen)


def _times() -> tuple[float, float, float]:
    """Return the time, and the processor seconds used by all processes and by this one."""
    return time.monotonic(), busy_seconds(), time.process_time()


def take_share(ranks: int, environment: Mapping[str, str] = os.environ) -> None:
    """Set the number of threads to this rank's share of the cores.

    OMP_NUM_THREADS has precedence, except for the 1 that torchrun sets by default.
    """
    chosen = environment.get("OMP_NUM_THREADS")
    if chosen is None or (chosen == "1" and "TORCHELASTIC_RUN_ID" in environment):
        torch.set_num_threads(max(1, int(allowed_cores() / ranks)))


_PREPARED: Final = 128
"""Number of prepared products that are kept: at about eight a pass, those of the last fifteen numbers of tokens.
Preparing one of 48 x 96 takes 0.35 ms."""


def bound_product_caches() -> None:
    """Bound the two caches of prepared matrix products on a CPU, unless the environment sets their sizes.

    A product is prepared for its exact number of rows, and the passes of a server differ in their number of tokens.
    oneDNN and torch keep about 250 KiB for each. After 3,000 products of different sizes a process held 2.2 GiB with
    torch's default of 1,024, and 0.5 GiB with this bound.

    Call it before a model is loaded: both read the environment at the first product in 16 bits or with blocked weights,
    and torch exports no function for either.
    """
    for name in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
        os.environ.setdefault(name, str(_PREPARED))


def release_free_memory() -> None:
    """Return the heap's free pages to the system, which glibc does not do by itself; without glibc do nothing.

    Buffers of many sizes make the heap grow by gigabytes over a run. But a returned page costs a page fault when it is
    used again, so this is called when sampling and learning alternate, and seldom in between.
    """
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)


def on_device(array: npt.NDArray[Any], device: torch.device) -> Tensor:
    """Return an array as a tensor on `device`, without waiting for it; on the CPU it is the same memory."""
    return _staged(array, device).to(device, non_blocking=True)


def fill(target: Tensor, array: npt.NDArray[Any]) -> None:
    """Copy an array over `target` in place, without waiting for its device."""
    target.copy_(_staged(array, target.device), non_blocking=True)


def _staged(array: npt.NDArray[Any], device: torch.device) -> Tensor:
    host = torch.from_numpy(np.ascontiguousarray(array))
    # A copy from pageable memory would wait for all queued kernels. torch keeps pinned memory until it is copied.
    return host.pin_memory() if device.type == "cuda" else host
