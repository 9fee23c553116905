"""The sandboxes of this computer: processes restricted by the kernel, and namespaces made by bubblewrap.

`process`: with Landlock and seccomp, the command reads programs and its input files, writes its folders, connects by
TCP only to the gateway's port (on any host), opens no other sockets, and signals no process outside. A command of root
runs as nobody, or as root without capabilities. `open_here` returns what the system cannot restrict.

`bubblewrap`: the command sees the system's programs, its input files and its folders, each under its usual path. Homes,
other folders and the processes of this computer do not exist for it. Its loopback forwards the gateway's port to a
socket in the file system. When its first process ends, the kernel kills all others.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import logging
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

from ...errors import UserError
from ...processes import FAMILY_VARIABLE, end_family, new_family
from .programs import landlock, seccomp
from .sandbox import (
    PROGRAMS,
    Confined,
    Ended,
    HarnessError,
    SandboxLimits,
    exit_code_of,
    inner_port,
    loopback_url,
    relayed,
)

# The supervisor is a small process that runs one command.
#
# It outlives this process for a moment, to kill the processes of the command. It notices the end of this process by the
# end of its standard input and by its parent's id.


_BOOTSTRAP: Final = (
    f"import sys; sys.path.insert(0, {str(PROGRAMS.parent)!r}); from programs.supervisor import main; main()"
)
_END_SECONDS: Final = 15.0
_LIMITS: Final = {
    "seconds": "sandbox_seconds",
    "cpu_seconds": "sandbox_cpu_seconds",
    "memory": "sandbox_memory_mib",
    "processes": "sandbox_processes",
    "disk": "sandbox_disk_mib",
    "file": "sandbox_file_mib",
}
_SIGXCPU, _SIGXFSZ = -24, -25


async def run_supervised(
    words: Sequence[str],
    env: Mapping[str, str],
    limits: SandboxLimits,
    *,
    folders: Sequence[Path],
    cwd: Path,
    bounded: Sequence[str] = (),
    files: Mapping[str, Any] | None = None,
    after: Sequence[str] = (),
) -> Ended:
    """Run a command; when this returns or raises, all of its processes have ended.

    Args:
        folders: folders whose size counts as the command's disk.
        bounded: limits to apply besides time, output and disk.
        files: Landlock rules; None restricts neither files nor network.
        after: command to run after the end, in any case.

    Raises:
        HarnessError: it could not be started or ended.
        UserError: the system is not Linux or macOS.
    """
    if os.name != "posix":
        raise UserError("commands as agents need Linux or macOS", setting="agent_command")
    mark = new_family()
    wanted = {"seconds", "output", "disk", *bounded}
    values = asdict(limits)
    task = {
        "argv": list(words),
        "cwd": str(cwd),
        "env": {**env, FAMILY_VARIABLE: mark},
        "limits": {name: value for name, value in values.items() if name in wanted},
        "rlimits": {name: value for name, value in values.items() if name in bounded},
        "files": files,
        "folders": [str(folder) for folder in folders],
        "after": list(after),
        "parent": os.getpid(),
    }
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-S", "-c", _BOOTSTRAP),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,
        env={"PATH": os.defpath},
        limit=max(1 << 20, 16 * limits.output),
    )
    assert process.stdin is not None
    assert process.stdout is not None
    report = b""
    try:
        with contextlib.suppress(OSError):  # it has died: there will be no report
            process.stdin.write(json.dumps(task).encode() + b"\n")
            await process.stdin.drain()
        report = await process.stdout.readline()
    finally:
        process.stdin.close()
        if not report.endswith(b"\n"):
            await asyncio.shield(_end_all(process, mark))
    await process.wait()
    return _read(report, words[0])


async def _end_all(process: asyncio.subprocess.Process, mark: str) -> None:
    """Wait for the supervisor to end the command, then end all processes with the mark."""
    with contextlib.suppress(asyncio.TimeoutError):
        await asyncio.wait_for(process.wait(), _END_SECONDS)
    await asyncio.to_thread(end_family, process.pid, mark, grace=0.0)
    await process.wait()


def _read(report: bytes, program: str) -> Ended:
    if not report.endswith(b"\n"):
        raise HarnessError(f"{program}: its supervisor was killed; so were all processes with its mark")
    result = json.loads(report)
    if "error" in result:
        raise HarnessError(f"the command cannot be run: {result['error']}")
    if result["alive"]:
        raise HarnessError(f"{program}: a process of it cannot be killed")
    status = result["status"]
    limit = result["ended_by"] or {_SIGXCPU: "cpu_seconds", _SIGXFSZ: "file"}.get(status)
    return Ended(
        None if limit is not None else status,
        None if limit is None else _LIMITS[limit],
        result["stdout"],
        result["stderr"],
        result["seconds"],
        result["cpu_seconds"],
        result["memory"],
        result["left_behind"],
    )


logger = logging.getLogger(__name__)


BOUNDED: Final = ("cpu_seconds", "memory", "processes", "file")
_DEVICES: Final = ("/dev/null", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty")
_SEEN: Final = ("/dev/zero", "/proc", "/sys")
"""The rest of /dev is hidden: it contains terminals, the shared memory of trainings and, for root, the disks."""


class ProcessSandbox:
    """Runs commands as processes of this computer, restricted by Landlock and seccomp."""

    def __init__(self, network: str) -> None:
        """`network` is `closed` or `open`."""
        self._network = network

    async def run(self, confined: Confined) -> Ended:
        _warn_once(self._network)
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
    """Return the restrictions that this computer's kernel cannot enforce."""
    version, has_filter = landlock.version(), seccomp.is_known()
    missing = [] if version else ["files"]
    if network == "closed":
        missing += [] if version >= landlock.NETWORK_VERSION else ["TCP"]
        missing += [] if has_filter else ["other sockets"]
    missing += [] if version >= landlock.SCOPE_VERSION else ["signals to your processes"]
    return missing if has_filter else [*missing, "memory that no process shows"]


@functools.cache
def _warn_once(network: str) -> None:
    if left := open_here(network):
        logger.warning(
            "on this system the sandbox `process` leaves open: %s; `sandbox=bubblewrap` closes files, network and "
            "processes",
            ", ".join(left),
        )


_LINKS: Final = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")


class BubblewrapSandbox:
    """Runs commands in new namespaces."""

    def __init__(self, network: str) -> None:
        """`network` is `closed` or `open`.

        Raises:
            UserError: bubblewrap is not installed.
        """
        program = shutil.which("bwrap")
        if program is None:
            raise UserError(
                "bubblewrap is not installed (`apt-get install bubblewrap`); or take `sandbox=process`",
                setting="sandbox",
            )
        self._program = program
        self._network = network

    async def run(self, confined: Confined) -> Ended:
        async with relayed(self._network, confined.gateway) as socket:
            way: list[str] = []
            if socket is not None and confined.gateway is not None:
                way = ["--relay", str(inner_port(confined.gateway[1])), str(socket)]
            inner = [
                *(sys.executable, "-I", "-S", str(PROGRAMS / "inside.py")),
                *("--measured", "--processes", str(confined.limits.processes), *way, "--", *confined.words),
            ]
            ended = await run_supervised(
                [*self.arguments(confined, socket), *inner],
                confined.env,
                confined.limits,
                folders=[confined.workspace, *confined.writable],
                cwd=confined.workspace,
                bounded=[name for name in BOUNDED if name != "processes"],
            )
        if ended.exit_code is not None and ended.stderr.startswith("bwrap: "):
            raise HarnessError(f"bubblewrap cannot make the sandbox: {ended.stderr.strip()[:300]}")
        return replace(ended, exit_code=exit_code_of(ended.exit_code))

    def base_url(self, url: str) -> str:
        return url if self._network == "open" else loopback_url(url)

    def arguments(self, confined: Confined, socket: Path | None) -> list[str]:
        """Return the command line of bubblewrap; `socket` is that of the gateway."""
        words = [self._program, "--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL"]
        if self._network == "open":
            words.append("--share-net")
        for name in _LINKS:
            if os.path.islink(name):
                words += ["--symlink", os.readlink(name), name]
        # a tmpfs would count neither as disk nor as memory
        temporary = confined.env["TMPDIR"]
        words += ["--proc", "/proc", "--dev", "/dev", "--bind", temporary, "/dev/shm", "--remount-ro", "/dev"]
        words += ["--bind", temporary, "/tmp"]
        seen = [name for name in confined.readable.paths if not (name in _LINKS and os.path.islink(name))]
        # parents first: binding a folder hides earlier binds within it
        for name in sorted({*seen, str(PROGRAMS), *map(str, confined.given)}):
            words += ["--ro-bind-try", name, name]
        for path in (*([] if socket is None else [socket]), confined.workspace, *confined.writable):
            words += ["--bind", str(path), str(path)]
        return [*words, "--remount-ro", "/", "--chdir", str(confined.workspace), "--"]
