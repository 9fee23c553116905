"""The sandbox of bubblewrap: Linux namespaces with few files and no network except the gateway.

The command sees the system's programs, its input files and its folders, each under its usual path. Homes, other folders
and the processes of this computer do not exist for it. Its loopback forwards the gateway's port to a socket in the file
system. When its first process ends, the kernel kills all others.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from ...errors import UserError
from .process import BOUNDED, PROGRAMS, run_supervised
from .sandbox import Confined, Ended, HarnessError, exit_code_of, relay

_UNPRIVILEGED: Final = 1024
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
        async with AsyncExitStack() as stack:
            way: list[str] = []
            shown: list[Path] = []
            if self._network == "closed" and confined.gateway is not None:
                socket = short_socket(stack)
                await stack.enter_async_context(relay(socket, confined.gateway))
                way, shown = ["--relay", str(inner_port(confined.gateway[1])), str(socket)], [socket]
            inner = [
                *(sys.executable, "-I", "-S", str(PROGRAMS / "inside.py")),
                *("--measured", "--processes", str(confined.limits.processes), *way, "--", *confined.words),
            ]
            ended = await run_supervised(
                [*self.arguments(confined, shown), *inner],
                confined.env,
                confined.limits,
                folders=[confined.workspace, *confined.writable],
                cwd=confined.workspace,
                bounded=[name for name in BOUNDED if name != "processes"],
            )
        if ended.exit_code is not None and ended.stderr.startswith("bwrap: "):
            raise HarnessError(f"bubblewrap cannot make the sandbox: {ended.stderr.strip()[:300]}")
        code = None if ended.exit_code is None else exit_code_of(ended.exit_code)
        return Ended(**{**vars(ended), "exit_code": code})

    def base_url(self, url: str) -> str:
        return url if self._network == "open" else loopback_url(url)

    def arguments(self, confined: Confined, shown: Sequence[Path] = ()) -> list[str]:
        """Return the command line of bubblewrap; `shown` are further visible files."""
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
        for path in shown:
            words += ["--bind", str(path), str(path)]
        for path in (confined.workspace, *confined.writable):
            words += ["--bind", str(path), str(path)]
        return [*words, "--remount-ro", "/", "--chdir", str(confined.workspace), "--"]


def short_socket(stack: AsyncExitStack) -> Path:
    """Return a short path for a socket, in a folder that is removed with the stack."""
    import tempfile

    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="marl-"))
    return Path(folder).resolve() / "gateway"


def loopback_url(url: str) -> str:
    """Return the URL of a gateway on the loopback of a sandbox.

    Raises:
        HarnessError: it is served over TLS; the certificate is for another host name.
    """
    parts = urlsplit(url)
    if parts.scheme != "http":
        raise HarnessError(f"{url}: a sandbox with a closed network reaches a gateway over plain HTTP alone")
    return parts._replace(netloc=f"127.0.0.1:{inner_port(parts.port or 80)}").geturl()


def inner_port(port: int) -> int:
    """Return the port of a gateway on the loopback of a sandbox; a privileged port is moved up by 1024."""
    return port if port >= _UNPRIVILEGED else _UNPRIVILEGED + port
