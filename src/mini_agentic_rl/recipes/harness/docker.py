"""The sandbox of containers, by the command line of Docker or of a compatible program named `docker`.

The container has a read-only root, no capabilities, the limits, and the rollout's folders. With a closed network it has
only its loopback, where `inside.py` (the image needs `python3`) forwards connections to the gateway. With an open
network the gateway is `host.docker.internal`.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from ...config import MIB
from ...errors import UserError
from ...http import is_loopback
from .process import run_supervised
from .sandbox import PROGRAMS, Confined, Ended, HarnessError, exit_code_of, inner_port, loopback_url, new_name, relayed

HOST: Final = "host.docker.internal"
_INSIDE: Final = "/mini-agentic-rl/inside.py"
_SOCKET_FOLDER: Final = "/mini-agentic-rl/way"
_FAILED_TO_RUN: Final = 125
_HOST_VARIABLES: Final = ("PATH", "HOME", "DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG", "DOCKER_TLS_VERIFY")


class DockerSandbox:
    """Runs commands in containers."""

    def __init__(self, network: str, cpus: float) -> None:
        """`network` is `closed` or `open`; `cpus` is the number of CPUs of a container.

        Raises:
            UserError: `docker` is not installed.
        """
        program = shutil.which("docker")
        if program is None:
            raise UserError("there is no `docker` command here; or take `sandbox=process`", setting="sandbox")
        self._program = program
        self._network = network
        self._cpus = cpus

    async def run(self, confined: Confined) -> Ended:
        name = new_name()
        async with relayed(self._network, confined.gateway) as socket:
            ended = await run_supervised(
                self.arguments(confined, name, socket),
                {key: os.environ[key] for key in _HOST_VARIABLES if key in os.environ},
                confined.limits,
                folders=[confined.workspace, *confined.writable],
                cwd=confined.workspace,
                after=[self._program, "rm", "--force", name],
            )
        if ended.exit_code == _FAILED_TO_RUN:
            raise HarnessError(f"docker cannot run the container: {ended.stderr.strip()[-300:]}")
        code = exit_code_of(ended.exit_code)
        # the usage is that of the client, not of the container
        return replace(ended, exit_code=code, memory=0, cpu_seconds=0.0, facts={"container": name})

    def base_url(self, url: str) -> str:
        if self._network == "closed":
            return loopback_url(url)
        parts = urlsplit(url)
        if not is_loopback(parts.hostname or ""):
            return url
        port = f":{parts.port}" if parts.port else ""
        return parts._replace(netloc=f"{HOST}{port}").geturl()

    def arguments(self, confined: Confined, name: str, socket: Path | None) -> list[str]:
        """Return the command line that runs a command in a container of this name.

        Args:
            socket: socket of the gateway; None without a gateway or with an open network.

        Raises:
            UserError: no image is given.
        """
        if not confined.image:
            raise UserError("docker needs the image of a container", setting="sandbox_image")
        limits = confined.limits
        memory = f"{limits.memory // MIB}m"
        words: list[str] = [
            *(self._program, "run", "--rm", "--init", "--name", name, "--pull", "missing"),
            *("--label", "mini-agentic-rl=harness", "--workdir", str(confined.workspace)),
            *(("--user", f"{os.getuid()}:{os.getgid()}") if hasattr(os, "getuid") else ()),
            *("--cap-drop", "ALL", "--security-opt", "no-new-privileges"),
            *("--read-only", "--tmpfs", "/tmp:rw,nosuid,size=64m"),
            *("--memory", memory, "--memory-swap", memory, "--cpus", f"{self._cpus:g}"),
            *("--pids-limit", str(limits.processes)),
            *("--ulimit", f"fsize={limits.file}", "--ulimit", f"cpu={int(limits.cpu_seconds) + 1}"),
            *("--ulimit", "core=0"),
        ]
        if self._network == "closed":
            words += ["--network", "none"]
        else:
            words += ["--add-host", f"{HOST}:host-gateway"]
        for path in (confined.workspace, *confined.writable):
            words += ["--mount", f"type=bind,source={path},target={path}"]
        for path in confined.given:
            words += ["--mount", f"type=bind,source={path},target={path},readonly"]
        command: Sequence[str] = confined.words
        if socket is not None and confined.gateway is not None:
            words += ["--mount", f"type=bind,source={PROGRAMS / 'inside.py'},target={_INSIDE},readonly"]
            words += ["--mount", f"type=bind,source={socket.parent},target={_SOCKET_FOLDER}"]
            way = ["--relay", str(inner_port(confined.gateway[1])), f"{_SOCKET_FOLDER}/{socket.name}"]
            command = ["python3", "-I", "-S", _INSIDE, *way, "--", *command]
        for key, value in confined.env.items():
            if key != "PATH":  # the image's own
                words += ["--env", f"{key}={value}"]
        return [*words, confined.image, *command]
