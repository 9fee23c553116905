"""vLLM servers that a run starts on this computer and that end with it."""

from __future__ import annotations

import contextlib
import logging
import os
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import httpx

from ..errors import UserError
from ..policy import PolicyModel
from ..processes import FAMILY_VARIABLE, at_death, check_cancelled, end_family, new_family, start_child
from .base import SamplerSettings
from .clients import max_lora_rank

logger = logging.getLogger(__name__)

_HOST: Final = "127.0.0.1"
_ENDING_SECONDS: Final = 20.0
RESTARTS: Final = 5
"""Maximum number of restarts of a server."""
_CPU_CACHE_GIB: Final = 2
"""Size of the key/value cache of a server without a GPU. vLLM's default is 90 % of the computer's memory per server,
which leaves no room for a learner or a second server."""
_LINE_CHARACTERS: Final = 300
_NOTE_SECONDS: Final = 15.0
"""Seconds between two notes about a server that is still starting."""
_POLL_SECONDS: Final = 0.5


class VllmServer:
    """A `vllm serve` process, restarted up to `RESTARTS` times.

    Args:
        command: the command.
        environment: environment of the process.
        url: address that it will listen at.
        log: file for its output.
        timeout: seconds that it may take to become healthy.
    """

    def __init__(self, command: list[str], environment: dict[str, str], url: str, log: Path, timeout: float) -> None:
        self.url = url
        self.log = log
        self._command = command
        self._environment = environment
        self._timeout = timeout
        self._process: subprocess.Popen[Any] | None = None
        self._family = ""
        self._revoke: Callable[[], None] = lambda: None
        self._starts = 0
        self._unhealthy_since = 0.0
        """Time (monotonic) of the first failed health check since the start, or 0."""

    def start(self) -> None:
        """Start the process."""
        self._starts += 1
        self._family = new_family()
        self._unhealthy_since = 0.0
        with self.log.open("ab") as log:
            self._process = start_child(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**self._environment, FAMILY_VARIABLE: self._family},
                start_new_session=True,
            )
        # The engine is a process of its own, which would survive the death of the server's process.
        self._revoke = at_death(end_family, 0, self._family)

    def is_well(self) -> bool:
        """Return whether `/health` answers with status 200.

        Raises:
            UserError: the process has ended.
        """
        if self._process is not None and self._process.poll() is not None:
            raise UserError(
                f"vLLM ended while it started: {self.last_line()} (all of it in {self.log})", setting="sampler"
            )
        try:
            return httpx.get(f"{self.url}/health", timeout=5.0, trust_env=False).status_code == httpx.codes.OK
        except httpx.HTTPError:
            return False

    def restart(self) -> None:
        """Start the process again if it has ended, or has been unhealthy for `timeout` seconds.

        Raises:
            UserError: it has ended too often.
        """
        now = time.monotonic()
        self._unhealthy_since = self._unhealthy_since or now
        if self._process is None or (self._process.poll() is None and now - self._unhealthy_since < self._timeout):
            return
        if self._starts > RESTARTS:
            raise UserError(f"vLLM has ended {self._starts} times: look into {self.log}", setting="sampler")
        self.end()
        logger.warning("vLLM at %s has ended and is started again; its log is %s", self.url, self.log)
        self.start()

    def last_line(self) -> str:
        """Return the last line of an ended server's log that names an error, or else its last line."""
        try:
            lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            lines = []
        lines = [line.strip() for line in lines if line.strip()] or ["it has printed nothing"]
        ended = self._process is not None and self._process.poll() is not None
        errors = [line for line in lines if ended and "Error" in line and "Traceback" not in line]
        return (errors or lines)[-1][-_LINE_CHARACTERS:]

    def end(self) -> None:
        """End the process with SIGTERM, and with SIGKILL after 20 seconds."""
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_ENDING_SECONDS)
        end_family(self._process.pid, self._family, grace=0)
        self._process.wait()
        self._revoke()


def start_servers(
    settings: SamplerSettings, model: PolicyModel, model_folder: str, folder: Path, note: Callable[[str], None]
) -> list[VllmServer]:
    """Start `sampler_replicas` servers at the loopback address, and wait until all are healthy.

    Args:
        model: the learner's model.
        model_folder: folder or id of the base model.
        folder: folder for the servers' logs.
        note: called with a line of progress at each slow step.

    Raises:
        UserError: vLLM is not installed, or a server does not start; the message names its log.
    """
    python = python_of_vllm(settings)
    with contextlib.ExitStack() as stack:
        bound = [stack.enter_context(socket.create_server((_HOST, 0))) for _ in range(settings.sampler_replicas)]
        ports = [each.getsockname()[1] for each in bound]
    servers = [
        VllmServer(
            serve_command(python, model, model_folder, port, settings.sampler_args),
            serve_environment(on_cpu=model.device.type == "cpu"),
            f"http://{_HOST}:{port}",
            folder / f"vllm-{number}.log",
            settings.sampler_timeout,
        )
        for number, port in enumerate(ports)
    ]
    try:
        for server in servers:
            server.start()
        note(f"starting vLLM ({len(servers)} servers); logs: {', '.join(str(server.log) for server in servers)}")
        _wait_until_healthy(servers, settings.sampler_timeout, note)
    except BaseException:
        end_servers(servers)
        raise
    return servers


def _wait_until_healthy(servers: Sequence[VllmServer], timeout: float, note: Callable[[str], None]) -> None:
    began = noted = time.monotonic()
    while starting := [server for server in servers if not server.is_well()]:
        check_cancelled()
        now = time.monotonic()
        first = starting[0]
        if now - began > timeout:
            raise UserError(
                f"vLLM was not ready after {timeout:.0f} seconds: {first.last_line()}; look into {first.log}, or "
                "give it longer",
                setting="sampler_timeout",
            )
        if now - noted > _NOTE_SECONDS:
            noted = now
            note(f"vLLM is starting: {now - began:.0f} s so far, {first.last_line()}")
        time.sleep(_POLL_SECONDS)
    note(f"vLLM is ready after {time.monotonic() - began:.0f} s")


def end_servers(servers: Sequence[VllmServer]) -> None:
    """End servers at the same time."""
    with ThreadPoolExecutor(max(1, len(servers)), "vllm-end") as threads:
        list(threads.map(VllmServer.end, servers))


def python_of_vllm(settings: SamplerSettings) -> str:
    """Return the Python interpreter of the environment that has vLLM.

    Raises:
        UserError: vLLM is not installed here, and `vllm_python` names no interpreter.
    """
    if settings.vllm_python is not None:
        if not settings.vllm_python.is_file():
            raise UserError(f"there is no Python at {settings.vllm_python}", setting="vllm_python")
        return str(settings.vllm_python.absolute())
    if find_spec("vllm") is None:
        raise UserError(
            "vLLM is not installed in this environment: give the Python of one that has it as `vllm_python`, or the "
            "address of a server that runs as `sampler_url`",
            setting="sampler",
        )
    return sys.executable


def serve_command(python: str, model: PolicyModel, model_folder: str, port: int, further: str) -> list[str]:
    """Return the command that serves the base model in the learner's number format at an address."""
    dtype = str(model.dtype).removeprefix("torch.")
    command = [python, "-m", "vllm.entrypoints.cli.main", "serve", model_folder]
    command += ["--served-model-name", "base", "--host", _HOST, "--port", str(port), "--dtype", dtype]
    # What the learner computes: after the temperature, and with no sampling defaults of the model's own.
    command += ["--logprobs-mode", "processed_logprobs", "--generation-config", "vllm"]
    command += ["--enable-prompt-tokens-details"]
    loaded = 3 * len(model.versions)  # the current version, and older ones of requests in flight
    command += ["--enable-lora", "--max-lora-rank", str(max_lora_rank(model.rank or 0))]
    command += ["--max-loras", str(loaded), "--max-cpu-loras", str(2 * loaded)]
    if model.device.type == "cpu":
        command += ["--enforce-eager"]  # without compiling graphs
    return [*command, *shlex.split(further)]


def serve_environment(*, on_cpu: bool) -> dict[str, str]:
    """Return the environment of a process that serves the model."""
    defaults = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1", "VLLM_NO_USAGE_STATS": "1"}
    if on_cpu:
        defaults["VLLM_CPU_KVCACHE_SPACE"] = str(_CPU_CACHE_GIB)
    # vLLM may be in another environment, which must not import from this one.
    inherited = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    return defaults | inherited
