"""The sandbox of processes: limits, and where the kernel has Landlock, closed files, ports and signals.

With Landlock the command reads programs and its own files, writes its folders, connects to the gateway's port (on any
host) and to no other, and signals nobody outside. UDP, and sockets in the file system, stay open. Without Landlock
(macOS, older kernels) only the limits hold: it may read and write what this user may.
"""

from __future__ import annotations

import functools
import logging
from typing import Any, Final

from .programs import landlock
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
        version = landlock.version()
        _tell(version, self._network)
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


@functools.cache
def _tell(version: int, network: str) -> None:
    """Say once what is left open here."""
    if version == 0:
        logger.warning(
            "this system has no Landlock: commands in the sandbox `process` have their limits, but read, write and "
            "reach what you can; `sandbox=bubblewrap` closes that"
        )
    elif version < landlock.NETWORK_VERSION and network == "closed":
        logger.warning(
            "this kernel's Landlock (version %d) cannot close the network: `sandbox=bubblewrap` does", version
        )
