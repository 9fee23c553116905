"""Checks of the installation and the computer for `doctor`. A check changes nothing but a file that it removes."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Final, Literal

import psutil
import torch
from packaging.requirements import Requirement

from ..config import Settings, cache_dir
from ..errors import UserError
from ..plugins import load_part
from ..policy import embedded_is_pulled, embedded_path, kernels, resolve_device, resolve_dtype
from ..processes import CoreWatch, allowed_cores, weaker_bounds
from .planning import plan_job
from .serve import ServeSettings
from .speed_test import measure_speed, minutes_of_train, save_speed
from .store_server import ServeStoreSettings
from .train_config import PlanSettings

_PACKAGE: Final = "mini-agentic-rl"
_GIB: Final = 2**30
_WATCH_SECONDS: Final = 1.0
"""Seconds over which the processor use of other programs is measured."""
_NEEDED_MEMORY: Final = 3 * _GIB
"""Memory that `make train` takes, with some to spare."""
_NEEDED_DISK: Final = 3 * _GIB
_QUIET: Final = 0.75
"""Share of the cores that has to be free for a measured speed to be that of the computer."""
_SMALL_GPU: Final = 6 * 10**9


@dataclass(frozen=True)
class Check:
    """The result of a check."""

    name: str
    state: Literal["ok", "note", "fault"]
    """`fault`: something does not work; `note`: worth knowing."""
    found: str
    """The state in words."""
    advice: str = ""
    """What to do; empty if nothing."""


def checkup(*, speed_test: bool = True) -> dict[str, Any]:
    """Check this computer.

    Args:
        speed_test: measure for ten seconds how fast this computer samples and learns.

    Returns:
        `installation` and `hardware` (checks), `speed` and `train_minutes` (None without a speed test, or where it
        failed), `preset` (reason to train with `preset=4gb`, or None), and `faults`, their number.
    """
    python = Check("Python", "ok", f"{platform.python_version()} ({sys.executable})")
    checks = (packages, torch_build, compiler, embedded_model, folders, sandbox, bounds)
    servers: dict[str, type[Settings]] = {"serve": ServeSettings, "store": ServeStoreSettings}
    port_check = ports({name: int(kind.settings()["port"].default) for name, kind in servers.items()})
    installation = [python, *(check() for check in checks), port_check]
    hardware = [check() for check in (processors, bfloat16, other_work, memory, disk, gpus)]
    speed = None
    if speed_test:
        watch = CoreWatch()
        try:
            speed = measure_speed()
            if watch.use().free >= _QUIET * allowed_cores():
                save_speed(speed)
        except Exception as error:  # whatever fails here fails in a training too
            hardware.append(Check("Speed test", "fault", f"{type(error).__name__}: {error}"))
    return {
        "installation": [asdict(check) for check in installation],
        "hardware": [asdict(check) for check in hardware],
        "speed": None if speed is None else asdict(speed),
        "train_minutes": None if speed is None else minutes_of_train(speed),
        "preset": _reason_for_preset(),
        "faults": sum(check.state == "fault" for check in (*installation, *hardware)),
    }


def _reason_for_preset() -> str | None:
    """Return why `train` needs the preset 4gb here; None if its default settings fit."""
    if torch.cuda.is_available():
        total = torch.cuda.get_device_properties(0).total_memory
        return "chooses what fits into the GPU's memory" if total <= _SMALL_GPU else None
    if not embedded_is_pulled():  # nothing to plan with
        return None
    free, planned = available_memory(), int(plan_job(PlanSettings())["peak_bytes"])
    if free >= planned:
        return None
    return f"{free / 1e9:.1f} GB are free and {planned / 1e9:.1f} GB are planned; it chooses what takes less"


def packages() -> Check:
    """Compare the installed packages with the requirements."""
    try:
        requirements = map(Requirement, metadata.requires(_PACKAGE) or ())
    except metadata.PackageNotFoundError:
        return Check("Packages", "note", f"{_PACKAGE} runs from its source and is not installed", "pip install -e .")
    wrong = []
    for requirement in requirements:
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        try:
            version = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            wrong.append(f"{requirement.name} is missing")
            continue
        if not requirement.specifier.contains(version.partition("+")[0], prereleases=True):
            wrong.append(f"{requirement.name} is {version}, not {requirement.specifier}")
    if wrong:
        return Check("Packages", "fault", "; ".join(wrong), f"pip install --upgrade {_PACKAGE}")
    return Check("Packages", "ok", "every required package is installed")


def torch_build() -> Check:
    """Check what torch was built for, and whether it finds that device."""
    version = torch.__version__
    if torch.version.cuda is None and getattr(torch.version, "hip", None) is None:
        return Check("torch", "ok", f"{version}, a CPU build")
    built = f"CUDA {torch.version.cuda}" if torch.version.cuda else "ROCm"
    if not torch.cuda.is_available():
        advice = "nvidia-smi shows whether the driver works; without a GPU the CPU build saves gigabytes"
        return Check("torch", "note", f"{version}, built for {built}, finds no GPU", advice)
    return Check("torch", "ok", f"{version}, built for {built}")


def compiler() -> Check:
    """Check whether the C++ kernels run here, with the default type of weights; compile them if needed."""
    dtype = resolve_dtype("auto", torch.device("cpu"))
    why = kernels.why_unused(dtype)
    if why is None:
        return Check(
            "C++ kernels", "ok", f"in use: {str(dtype).removeprefix('torch.')} with {kernels.VARIANTS[dtype].name}"
        )
    return Check("C++ kernels", "note", f"not used: {why.reason}; torch computes instead, slower", why.advice)


def embedded_model() -> Check:
    """Check whether the embedded model is on this computer."""
    if embedded_is_pulled():
        return Check("Embedded model", "ok", str(embedded_path()))
    return Check("Embedded model", "note", "not here yet (93 MB)", f"{_PACKAGE} models pull")


def folders() -> Check:
    """Check that the caches and the folder of runs can be written."""
    hub = Path(os.environ.get("HF_HOME") or "~/.cache/huggingface").expanduser()
    for name, folder, setting in (
        ("the cache", cache_dir(), "MINI_AGENTIC_RL_CACHE"),
        ("the folder of runs", Path("outputs"), "--output-dir"),
        ("the cache of Hugging Face", hub, "HF_HOME"),
    ):
        nearest = folder.absolute()
        while not nearest.exists() and nearest != nearest.parent:
            nearest = nearest.parent
        try:
            with tempfile.TemporaryFile(dir=nearest) as file:
                file.write(b"0")
        except OSError as error:
            message = f"{name} {folder} cannot be written: {error.strerror}"
            return Check("Folders", "fault", message, f"choose another: {setting}")
    return Check("Folders", "ok", "cache and outputs can be written")


def ports(servers: Mapping[str, int]) -> Check:
    """Check that the ports of the servers, given by the names of their commands, are free."""
    taken = [f"{port} ({name})" for name, port in servers.items() if not _is_free(port)]
    if taken:
        return Check("Ports", "note", f"taken: {', '.join(taken)}", "give these commands another --port")
    return Check("Ports", "ok", f"{', '.join(f'{port} ({name})' for name, port in servers.items())} are free")


def _is_free(port: int) -> bool:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, getattr(socket, "SO_EXCLUSIVEADDRUSE", socket.SO_REUSEADDR), 1)
        try:
            listener.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def sandbox() -> Check:
    """Check what the sandbox of agents that are commands leaves open on this computer."""
    try:
        left_open = load_part("harness").open_here()
    except UserError as error:
        return Check("Sandbox", "note", f"not available: {error}")
    if left_open:
        return Check("Sandbox", "note", f"`process` leaves open: {', '.join(left_open)}", "use `sandbox=bubblewrap`")
    return Check("Sandbox", "ok", "`process` closes files, network and signals")


def bounds() -> Check:
    """Say which bounds of helper processes are weaker on this operating system than on Linux."""
    weaker = weaker_bounds()
    if weaker:
        return Check("Bounds", "note", "; ".join(weaker), "use Linux where tasks or callers are not trusted")
    return Check("Bounds", "ok", "the kernel bounds memory, files and processor time of helper processes")


def processors() -> Check:
    """Check how many cores this process may use, by its affinity and the quota of its container."""
    allowed, total = allowed_cores(), psutil.cpu_count() or 1
    cores = f"{allowed:g} of {total} cores" if allowed < total else f"{total} cores"
    cores_text = f"{cores} ({_processor_name()})"
    threads = os.environ.get("OMP_NUM_THREADS")
    if threads and threads.isdigit() and int(threads) < allowed:
        return Check("Processor", "note", f"{cores_text}; OMP_NUM_THREADS={threads} leaves some idle", "unset it")
    return Check("Processor", "ok", cores_text)


def _processor_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def other_work() -> Check:
    """Measure how much of the processors other programs use."""
    watch = CoreWatch()
    time.sleep(_WATCH_SECONDS)
    use = watch.use()
    free = f"{use.free:.1f} of {use.cores:g} cores are free"
    if use.free < _QUIET * use.cores:
        return Check("Other work", "note", free, "end the other work: beside it a step takes several times as long")
    return Check("Other work", "ok", free)


def bfloat16() -> Check:
    """Check whether products in 16 bits are fast here."""
    chosen = str(resolve_dtype("auto", resolve_device("auto"))).removeprefix("torch.")
    if chosen == "float32":
        return Check("bfloat16", "note", "the processor has no bfloat16 instructions; `dtype=auto` uses float32")
    return Check("bfloat16", "ok", f"fast {chosen} products; `dtype=auto` uses them")


def available_memory() -> int:
    """Return the free bytes of memory, within the limit of the container."""
    free = int(psutil.virtual_memory().available)
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii").strip()
        used = Path("/sys/fs/cgroup/memory.current").read_text(encoding="ascii").strip()
        return min(free, int(limit) - int(used))
    except (OSError, ValueError):  # another system, an older kernel, or "max"
        return free


def memory() -> Check:
    """Check that there is enough memory for `make train`."""
    free, total = available_memory(), int(psutil.virtual_memory().total)
    amount = f"{free / _GIB:.1f} of {total / _GIB:.1f} GiB are free"
    if free < _NEEDED_MEMORY:
        return Check("Memory", "fault", amount, "end other programs; `mini-agentic-rl plan` says what a run needs")
    return Check("Memory", "ok", amount)


def disk() -> Check:
    """Check that there is enough disk space in the working directory."""
    free = shutil.disk_usage(Path.cwd()).free
    amount = f"{free / _GIB:.1f} GiB are free here"
    if free < _NEEDED_DISK:
        return Check("Disk", "note", amount, "choose an --output-dir on another disk for runs with many rollouts")
    return Check("Disk", "ok", amount)


def gpus() -> Check:
    """List the GPUs that torch can use."""
    if not torch.cuda.is_available():
        return Check("GPU", "ok", "none; the processor computes")
    gpu_texts = []
    for index in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(index)
        name = torch.cuda.get_device_properties(index).name
        gpu_texts.append(f"{name}, {free / _GIB:.1f} of {total / _GIB:.1f} GiB free")
    return Check("GPU", "ok", "; ".join(gpu_texts))
