"""The sandbox of processes: limits, and where the kernel has Landlock and seccomp, closed files, network and signals.

With both the command reads programs and its own files, writes its folders, connects by TCP to the gateway's port (on
any host) and opens no other socket, and signals nobody outside. A command of root runs as nobody, or as root without
capabilities. What a system cannot close, `open_here` tells.
"""

from __future__ import annotations

import functools
import logging
from typing import Any, Final

from .programs import landlock, seccomp
from .sandbox import Confined, Ended
from .supervised import run_supervised

logger = logging.getLogger(__name__)

BOUNDED: Final = ("cpu_seconds", "memory", "processes", "file")
_DEVICES: Final = (
    "/dev/null",
    "/dev/zero",
    "/dev/full",
    "/dev/random",
    "/dev/urandom",
    "/dev/tty",
    "/dev/ptmx",
    "/dev/pts",
)
_SEEN: Final = ("/dev", "/proc", "/sys")


class ProcessSandbox:
    """Runs commands as processes of this computer."""

    def __init__(self, network: str) -> None:
        """`network` is `closed` or `open`."""
        self._network = network

    async def run(self, confined: Confined) -> Ended:
        _tell(self._network)
        return await run_supervised(
            confined.words,
            confined.env,
            confined.limits,
            folders=[confined.workspace, *confined.writable],
            cwd=confined.workspace,
            bounded=BOUNDED,
            files=self._files(confined),
        )

    def base_url(self, url: str) -> str:
        return url

    def _files(self, confined: Confined) -> dict[str, Any]:
        ports = None if self._network == "open" else [] if confined.gateway is None else [confined.gateway[1]]
        return {
            "readable": [*confined.readable.paths, *map(str, confined.given), *_SEEN],
            "listable": list(confined.readable.listed),
            "writable": [*map(str, (confined.workspace, *confined.writable)), *_DEVICES],
            "ports": ports,
        }


def open_here(network: str = "closed") -> list[str]:
    """Return what this sandbox leaves open to a command on this computer, though it closes it elsewhere."""
    version, has_filter = landlock.version(), seccomp.is_known()
    found = [] if version else ["files"]
    if network == "closed":
        found += [] if version >= landlock.NETWORK_VERSION else ["TCP"]
        found += [] if has_filter else ["other sockets"]
    found += [] if version >= landlock.SCOPE_VERSION else ["signals to your processes"]
    return found if has_filter else [*found, "memory that no process shows"]


@functools.cache
def _tell(network: str) -> None:
    """Say once what is left open here."""
    if left := open_here(network):
        logger.warning(
            "on this system the sandbox `process` leaves open: %s; `sandbox=bubblewrap` closes files, network and "
            "processes",
            ", ".join(left),
        )
