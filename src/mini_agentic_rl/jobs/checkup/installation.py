"""Checks of the installation: Python, packages, the build of torch, the compiler, folders and ports."""

from __future__ import annotations

import os
import platform
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement

from ...config import cache_dir
from ...errors import UserError
from ...plugins import load_part
from ...policy import embedded_is_pulled, embedded_path, kernels
from .checks import Check

_PACKAGE: Final = "mini-agentic-rl"
_OLDEST_PYTHON: Final = (3, 10)
_EXTRAS: Final = ("trl", "recipes", "agents", "environments", "ray", "services", "quant", "loggers")
_CONSTRAINTS: Final = Path(__file__).parents[4] / "constraints.txt"
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


INSTALLATION: Final[Sequence[Callable[[], Check]]] = (
    python,
    packages,
    extras,
    torch_build,
    compiler,
    embedded_model,
    folders,
    sandbox,
)
"""Every check of the installation but that of the ports, which are the commands'."""
