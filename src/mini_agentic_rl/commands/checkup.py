"""Checks of the installation and the computer for `doctor`.

A check changes nothing beyond a file that it writes and removes.
"""

from __future__ import annotations

import os
import platform
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Final, Literal

import psutil
from packaging.requirements import Requirement

from ..config import cache_dir
from ..errors import UserError
from ..plugins import load_part
from ..policy import (
    embedded_is_pulled,
    embedded_path,
    kernels,
)
from ..processes import CoreWatch, allowed_cores, weaker_bounds

CheckState = Literal["ok", "note", "fault"]
"""A fault keeps something from working; a note is worth knowing."""


@dataclass(frozen=True)
class Check:
    """The result of a check."""

    name: str
    state: CheckState
    found: str
    """The state of things in words."""
    advice: str = ""
    """Advice on it; empty where nothing is to be done."""

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return asdict(self)


_PACKAGE: Final = "mini-agentic-rl"
_OLDEST_PYTHON: Final = (3, 10)
_EXTRAS: Final = ("trl", "recipes", "agents", "environments", "ray", "services", "quant", "loggers")
_CONSTRAINTS: Final = Path(__file__).parents[3] / "constraints.txt"
"""Of a clone; an installed package has none."""


def python() -> Check:
    """Look at the version of Python."""
    found = f"{platform.python_version()} ({sys.executable})"
    if sys.version_info < _OLDEST_PYTHON:
        return Check("Python", "fault", found, "install Python 3.10 or later")
    return Check("Python", "ok", found)


def packages() -> Check:
    """Compare what is installed with what the package asks for, and a clone's with the versions it was tested with."""
    try:
        asked = [Requirement(line) for line in metadata.requires(_PACKAGE) or ()]
    except metadata.PackageNotFoundError:
        return Check("Packages", "note", f"{_PACKAGE} runs from its source and is not installed", "pip install -e .")
    wrong = list(_wrong([one for one in asked if one.marker is None or one.marker.evaluate({"extra": ""})]))
    if wrong:
        return Check("Packages", "fault", "; ".join(wrong), f"pip install --upgrade {_PACKAGE}")
    other = list(_wrong(_constraints()))
    if other:
        return Check("Packages", "note", f"other than was tested: {'; '.join(other)}", "pip install -c constraints.txt")
    return Check("Packages", "ok", "all that it needs is there")


def _wrong(asked: Sequence[Requirement]) -> Iterator[str]:
    for one in asked:
        try:
            version = metadata.version(one.name)
        except metadata.PackageNotFoundError:
            yield f"{one.name} is missing"
            continue
        if not one.specifier.contains(version.partition("+")[0], prereleases=True):
            yield f"{one.name} is {version}, not {one.specifier}"


def _constraints() -> list[Requirement]:
    """Return the versions that a clone names for what is installed."""
    if not _CONSTRAINTS.is_file():
        return []
    lines = [line.partition("#")[0].strip() for line in _CONSTRAINTS.read_text(encoding="utf-8").splitlines()]
    found = [Requirement(line) for line in lines if line and not line.startswith("-")]
    return [one for one in found if (one.marker is None or one.marker.evaluate()) and _is_installed(one.name)]


def _is_installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def extras() -> Check:
    """Say which extras are complete."""
    try:
        asked = [Requirement(line) for line in metadata.requires(_PACKAGE) or ()]
    except metadata.PackageNotFoundError:
        return Check("Extras", "ok", "unknown")
    own = {extra: [one for one in asked if one.marker is not None and _of_extra(one, extra)] for extra in _EXTRAS}
    there = [extra for extra, of_extra in own.items() if of_extra and not list(_wrong(of_extra))]
    missing = [extra for extra in own if extra not in there]
    found = f"{', '.join(there) or 'none'} (not: {', '.join(missing)})" if missing else ", ".join(there)
    return Check("Extras", "ok", found)


def _of_extra(one: Requirement, extra: str) -> bool:
    return one.marker is not None and one.marker.evaluate({"extra": extra}) and not one.marker.evaluate({"extra": ""})


def torch_build() -> Check:
    """Look at what torch was built for, and whether that is here."""
    import torch

    version = torch.__version__
    if torch.version.cuda is None and getattr(torch.version, "hip", None) is None:
        return Check("torch", "ok", f"{version}, for the processor")
    built = f"CUDA {torch.version.cuda}" if torch.version.cuda else "ROCm"
    if not torch.cuda.is_available():
        advice = "look at nvidia-smi for the driver; without a card the smaller build saves gigabytes"
        return Check("torch", "note", f"{version}, for {built}, which it does not see", advice)
    return Check("torch", "ok", f"{version}, for {built}")


def compiler() -> Check:
    """Look whether the C++ kernels compute here; they are compiled if they were not."""
    why = kernels.why_unused()
    if why is None:
        return Check("C++ kernels", "ok", "attention and what stands between products are computed in C++")
    return Check("C++ kernels", "note", f"not used: {why.found}; torch computes instead, slower", why.advice)


def embedded_model() -> Check:
    """Look for the embedded model."""
    if embedded_is_pulled():
        return Check("Embedded model", "ok", str(embedded_path()))
    return Check("Embedded model", "note", "not here yet (93 MB)", f"{_PACKAGE} models pull")


def folders() -> Check:
    """Look whether the cache and the folder of runs can be written."""
    hub = Path(os.environ.get("HF_HOME") or "~/.cache/huggingface").expanduser()
    for name, folder, setting in (
        ("the cache", cache_dir(), "MINI_AGENTIC_RL_CACHE"),
        ("the folder of runs", Path("outputs"), "--output-dir"),
        ("the cache of Hugging Face", hub, "HF_HOME"),
    ):
        why = _unwritable(folder)
        if why is not None:
            return Check("Folders", "fault", f"{name} {folder} cannot be written: {why}", f"choose another: {setting}")
    return Check("Folders", "ok", "cache and outputs can be written")


def _unwritable(folder: Path) -> str | None:
    """Return why nothing can be written there; where there is no such folder, into the nearest one above it."""
    there = folder.absolute()
    while not there.exists() and there != there.parent:
        there = there.parent
    try:
        with tempfile.TemporaryFile(dir=there) as file:
            file.write(b"0")
    except OSError as error:
        return error.strerror
    return None


def ports(of_servers: Mapping[str, int]) -> Check:
    """Look whether the ports of the servers are free, given by the names of their commands."""
    taken = [f"{port} ({name})" for name, port in of_servers.items() if not _is_free(port)]
    if taken:
        return Check("Ports", "note", f"taken: {', '.join(taken)}", "those commands take another with --port")
    named = ", ".join(f"{port} ({name})" for name, port in of_servers.items())
    return Check("Ports", "ok", f"{named} are free")


def _is_free(port: int) -> bool:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def sandbox() -> Check:
    """Say what the sandbox of agents that are commands leaves open on this computer."""
    try:
        left = load_part("harness").open_here()
    except UserError as error:
        return Check("Sandbox", "note", f"there is none: {error}")
    if left:
        return Check("Sandbox", "note", f"`process` leaves open: {', '.join(left)}", "take `sandbox=bubblewrap`")
    return Check("Sandbox", "ok", "`process` closes files, network and signals")


def bounds() -> Check:
    """Say which bounds of helper processes are weaker on this operating system than on Linux."""
    weaker = weaker_bounds()
    if weaker:
        return Check("Bounds", "note", "; ".join(weaker), "use Linux where tasks or callers are not trusted")
    return Check("Bounds", "ok", "the kernel bounds memory, files and processor time of helper processes")


INSTALLATION: Final[Sequence[Callable[[], Check]]] = (
    python,
    packages,
    extras,
    torch_build,
    compiler,
    embedded_model,
    folders,
    sandbox,
    bounds,
)
"""Every check of the installation but that of the ports, which are the commands'."""


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

    from ..policy import resolve_device, resolve_dtype

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
