"""vLLM servers that are started for a run and end with it: here, or on the nodes of a Ray cluster (`on_ray.py`)."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Protocol

from ..errors import UserError
from .settings import SamplerSettings
from .vllm_process import ServedModel, StartedVllm, free_ports, python_of_vllm, serve_command, serve_environment

_TOLD_SECONDS: Final = 15.0
"""Between two notes of a server that is still starting."""
_LOOK_SECONDS: Final = 0.5


class Server(Protocol):
    """A server that is started for a run."""

    @property
    def url(self) -> str:
        """Its address, once it is known; another one where it was started again elsewhere."""

    @property
    def log(self) -> Path:
        """File for all that it prints."""

    def start(self) -> None:
        """Start it."""

    def is_well(self) -> bool:
        """Return whether it answers.

        Raises:
            UserError: it cannot be started, or has ended instead.
        """

    def restart(self) -> None:
        """See `StartedServer.restart`."""

    def last_line(self) -> str:
        """Return the last thing it said."""

    def advice(self) -> str:
        """Return what to do where it takes too long to start."""

    def ask_to_end(self) -> None:
        """Ask it to end."""

    def end(self) -> None:
        """Wait for its end, and make it where it does not come."""


class StartedServers:
    """Starts servers, and waits until all of them are well.

    Args:
        servers: those to start.
        timeout: seconds that they may take to be well.
        note: told of what takes long.
        leave: called when they have ended.

    Raises:
        UserError: a server does not start; the message says what to do.
    """

    def __init__(
        self,
        servers: Sequence[Server],
        timeout: float,
        note: Callable[[str], None],
        leave: Callable[[], None] = lambda: None,
    ) -> None:
        self.servers = tuple(servers)
        self._leave = leave
        try:
            self._wait(timeout, note)
        except BaseException:
            self.close()
            raise

    def _wait(self, timeout: float, note: Callable[[str], None]) -> None:
        begun = told = time.monotonic()
        left = list(self.servers)
        for server in left:
            server.start()
        logs = ", ".join(str(server.log) for server in left)
        note(f"starting vLLM ({len(left)} of it); what it says is in {logs}")
        while left:
            left = [server for server in left if not server.is_well()]
            now = time.monotonic()
            if left and now - begun > timeout:
                raise UserError(
                    f"vLLM was not ready after {timeout:.0f} seconds: {left[0].advice()}", setting="sampler_timeout"
                )
            if left and now - told > _TOLD_SECONDS:
                told = now
                note(f"vLLM is starting: {now - begun:.0f} s so far, {left[0].last_line()}")
            if left:
                time.sleep(_LOOK_SECONDS)
        note(f"vLLM is ready after {time.monotonic() - begun:.0f} s")

    def close(self) -> None:
        """End all of them."""
        try:
            for server in self.servers:
                server.ask_to_end()
            for server in self.servers:
                server.end()
        finally:
            self._leave()


def start_here(
    settings: SamplerSettings, model: ServedModel, folder: Path, note: Callable[[str], None]
) -> StartedServers:
    """Start servers on this computer, at its loopback address.

    Args:
        settings: how many, and their environment.
        model: what they serve.
        folder: where their logs go.
        note: told of what takes long.

    Raises:
        UserError: vLLM is not there, or a server does not start; the message names its log.
    """
    python = python_of_vllm(settings)
    host = "127.0.0.1"
    servers = [
        StartedVllm(
            serve_command(python, model, host, port, settings.sampler_args),
            serve_environment(model),
            f"http://{host}:{port}",
            folder / f"vllm-{number}.log",
            settings.sampler_timeout,
        )
        for number, port in enumerate(free_ports(host, settings.sampler_replicas))
    ]
    return StartedServers(servers, settings.sampler_timeout, note)
