"""Checks of the computer: processors, memory, disk, cards, and what else runs on it."""

from __future__ import annotations

import os
import platform
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import psutil

from ...processes import CoreWatch, allowed_cores
from .checks import Check

_GIB: Final = 2**30
_WATCHED: Final = 1.0
"""Seconds over which others' use of the processors is measured."""
_NEEDED_MEMORY: Final = 3 * _GIB
"""Bytes that `make train` takes, with some to spare."""
_NEEDED_DISK: Final = 3 * _GIB
_FREE: Final = 0.75


def processors() -> Check:
    """Say how many cores this process may use, by its affinity and the quota of its container."""
    allowed, there = allowed_cores(), psutil.cpu_count() or 1
    found = f"{allowed:g} of {there} cores ({_processor_name()})" if allowed < there else f"{there} cores"
    chosen = os.environ.get("OMP_NUM_THREADS")
    if chosen and chosen.isdigit() and int(chosen) < allowed:
        return Check("Processor", "note", f"{found}; OMP_NUM_THREADS={chosen} leaves some idle", "unset it")
    return Check("Processor", "ok", found if allowed < there else f"{found} ({_processor_name()})")


def _processor_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def other_work() -> Check:
    """Measure what others use of the processors."""
    watch = CoreWatch()
    time.sleep(_WATCHED)
    use = watch.use()
    found = f"{use.free:.1f} of {use.cores:g} cores are free"
    if use.free < _FREE * use.cores:
        return Check("Other work", "note", found, "a step takes a multiple of its time beside other work: end it first")
    return Check("Other work", "ok", found)


def bfloat16() -> Check:
    """Say whether products in bfloat16 are fast here."""
    import torch

    from ...policy import resolve_device, resolve_dtype

    chosen = str(resolve_dtype("auto", resolve_device("auto"))).removeprefix("torch.")
    if chosen == "float32":
        return Check("bfloat16", "note", "the processor has no products in bfloat16; float32 is used")
    device = "the card" if torch.cuda.is_available() else "the processor"
    return Check("bfloat16", "ok", f"{device} multiplies {chosen}, which `dtype=auto` takes")


def available_memory() -> int:
    """Return the bytes that can still be taken, by the machine and by the limit of the container."""
    found = int(psutil.virtual_memory().available)
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii").strip()
        used = Path("/sys/fs/cgroup/memory.current").read_text(encoding="ascii").strip()
        return min(found, int(limit) - int(used))
    except (OSError, ValueError):  # another system, an older kernel, or "max"
        return found


def memory() -> Check:
    """Say how much memory there is."""
    free, total = available_memory(), int(psutil.virtual_memory().total)
    found = f"{free / _GIB:.1f} of {total / _GIB:.1f} GiB are free"
    if free < _NEEDED_MEMORY:
        return Check("Memory", "fault", found, "end other programs; `mini-agentic-rl plan` says what a run needs")
    return Check("Memory", "ok", found)


def disk() -> Check:
    """Say how much room is where runs are written."""
    free = shutil.disk_usage(Path.cwd()).free
    found = f"{free / _GIB:.1f} GiB are free here"
    if free < _NEEDED_DISK:
        return Check("Disk", "note", found, "runs with many rollouts need some: choose another --output-dir")
    return Check("Disk", "ok", found)


def cards() -> Check:
    """Say which cards torch can compute on."""
    import torch

    if not torch.cuda.is_available():
        return Check("GPU", "ok", "none; all is computed by the processor")
    found = []
    for number in range(torch.cuda.device_count()):
        facts = torch.cuda.get_device_properties(number)
        free, total = torch.cuda.mem_get_info(number)
        found.append(f"{facts.name}, {free / _GIB:.1f} of {total / _GIB:.1f} GiB free")
    return Check("GPU", "ok", "; ".join(found))


HARDWARE: Final[Sequence[Callable[[], Check]]] = (processors, other_work, memory, disk, cards, bfloat16)
"""Every check of the computer."""
