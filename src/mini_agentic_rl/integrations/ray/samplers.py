"""vLLM servers on the nodes of a Ray cluster. Each has an actor, which starts it where Ray has room and dies with it.

What it is asked goes to its address; through Ray goes only that address, and whether it still runs. An actor that is
lost, with its node or alone, is replaced by one that may be elsewhere, so the address of a server can change.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ...errors import UserError
from ...samplers import SamplerSettings
from ...samplers.vllm_process import (
    RESTARTS,
    ServedModel,
    StartedServers,
    StartedVllm,
    free_ports,
    python_of_vllm,
    serve_command,
    serve_environment,
)
from .cluster import ActorLostError, RayActor, RayAnswer, RayCluster, address_of_node, connected

logger = logging.getLogger(__name__)

_VARIABLES: Final = "VLLM_"
"""Beginning of the variables of the training's environment that servers elsewhere are given."""
_STARTING_SECONDS: Final = 2.0
"""Seconds that one look at a server that starts may take; Ray may have no room for its actor yet."""
_ANSWER_SECONDS: Final = 10.0
_ENDING_SECONDS: Final = 40.0


@dataclass(frozen=True)
class ServerSetup:
    """All that an actor is told."""

    settings: SamplerSettings
    model: ServedModel
    folder: Path
    """Folder of new weights and logs, under the same path on every node."""
    mark: str
    """Name of a file there, by which a node that sees another folder under this path is told."""
    key: str
    """Bearer token that the server asks for."""
    variables: Mapping[str, str]
    """Further variables of its environment."""


@dataclass(frozen=True)
class SeenServer:
    """A server, as its actor sees it."""

    url: str
    well: bool
    last_line: str
    """The last thing that it has said."""


class VllmActor:
    """Starts one vLLM server beside itself. Nothing here knows Ray: it calls these methods, from several threads.

    Args:
        setup: what is served.
        number: of the server in its run.
    """

    def __init__(self, setup: ServerSetup, number: int) -> None:
        self._setup = setup
        self._number = number
        self._lock = threading.Lock()
        self._server: StartedVllm | None = None

    def look(self, again: bool) -> SeenServer | UserError:
        """Start the server if that was not done yet; return what is seen of it, or what keeps it from being started.

        Args:
            again: start it again if it has ended, or has been up for long without being well.
        """
        host = address_of_node()
        with self._lock:
            try:
                if self._server is None:
                    self._server = self._start(host)
                elif again:
                    self._server.restart()
                well = not again and self._server.is_well()
                return SeenServer(self._server.url, well, self._server.last_line())
            except UserError as error:
                return UserError(f"{error.text} (on the node {host})", setting=error.setting)

    def _start(self, host: str) -> StartedVllm:
        setup = self._setup
        if not (setup.folder / setup.mark).exists():
            raise UserError(
                f"new weights are handed over in {setup.folder}, which is not the same folder there: give one of a "
                "file system that all nodes share",
                setting="sampler_folder",
            )
        if os.path.isabs(setup.model.folder) and not Path(setup.model.folder).exists():
            raise UserError(f"the base model is not at {setup.model.folder}", setting="sampler_ray")
        python = python_of_vllm(setup.settings)
        (port,) = free_ports(host, 1)
        server = StartedVllm(
            serve_command(python, setup.model, host, port, setup.settings.sampler_args),
            {**serve_environment(setup.model), **setup.variables, "VLLM_API_KEY": setup.key},
            f"http://{f'[{host}]' if ':' in host else host}:{port}",
            setup.folder / log_name(self._number),
            setup.settings.sampler_timeout,
        )
        server.start()
        return server

    def end(self) -> None:
        """End the server."""
        with self._lock:
            if self._server is not None:
                self._server.end()


class RayServer:
    """A server on whichever node has room. A `Server` of `vllm_process.py`; one thread uses it at a time.

    Args:
        cluster: where it is started.
        setup: `cluster.put` of the setup.
        number: of the server in its run.
        log: file for all that it prints.
        cpus: processors that it needs.
        gpus: cards that it needs.
    """

    def __init__(self, cluster: RayCluster, setup: object, number: int, log: Path, cpus: float, gpus: float) -> None:
        self.url = ""
        self.log = log
        self._cluster = cluster
        self._setup = setup
        self._number = number
        self._cpus = cpus
        self._gpus = gpus
        self._actor: RayActor | None = None
        self._answer: RayAnswer | None = None
        """Of a call that is under way: an actor that waits for room is not asked again and again."""
        self._starts = 0
        self._said = ""

    def start(self) -> None:
        """Ask Ray for an actor, which starts the server once there is room for it."""
        self._starts += 1
        self._answer = None
        self._said = ""
        self._actor = self._cluster.start(VllmActor, self._setup, self._number, cpus=self._cpus, gpus=self._gpus)

    def is_well(self) -> bool:
        """See `Server.is_well`."""
        try:
            seen = self._look(again=False, seconds=_STARTING_SECONDS)
        except ActorLostError as lost:
            raise UserError(f"a vLLM server could not be started on Ray: {lost}", setting="sampler_ray") from lost
        return seen is not None and seen.well

    def restart(self) -> None:
        """See `Server.restart`."""
        try:
            self._look(again=True, seconds=_ANSWER_SECONDS)
        except ActorLostError as lost:
            if self._starts > RESTARTS:
                raise UserError(
                    f"{self._starts} actors of a vLLM server were lost: {lost}", setting="sampler"
                ) from lost
            logger.warning("the actor of the vLLM server at %s is lost, and another is started: %s", self.url, lost)
            self.start()

    def _look(self, *, again: bool, seconds: float) -> SeenServer | None:
        """Return what the actor sees; None where it has not answered yet."""
        assert self._actor is not None
        answer = self._answer = self._answer or self._actor.ask("look", again)
        try:
            seen: SeenServer | UserError = answer.result(seconds)
        except TimeoutError:
            return None
        except BaseException:
            self._answer = None
            raise
        self._answer = None
        if isinstance(seen, UserError):
            raise seen
        self.url, self._said = seen.url, seen.last_line
        return seen

    def last_line(self) -> str:
        """Return the last thing it said, or what it waits for."""
        return self._said or self._cluster.why_waiting(self._cpus, self._gpus, "sampler")

    def end(self) -> None:
        """Have the actor end the server, and then end the actor, which ends a server that is still running."""
        if self._actor is None:
            return
        if self._said:
            with contextlib.suppress(TimeoutError, ActorLostError):
                self._actor.ask("end").result(_ENDING_SECONDS)
        self._actor.end()


def log_name(number: int) -> str:
    """Return the name of a server's log."""
    return f"vllm-{number}.log"


def start_on_ray(
    settings: SamplerSettings, model: ServedModel, folder: Path, key: str, note: Callable[[str], None]
) -> StartedServers:
    """Start servers on the nodes of the cluster that `sampler_ray` names, at the addresses of their nodes.

    Args:
        settings: how many, and their environment.
        model: what they serve.
        folder: of new weights and logs.
        key: bearer token that they ask for.
        note: told of what takes long.

    Raises:
        UserError: there is no such cluster or no room on it, or a server does not start.
    """
    assert settings.sampler_ray is not None
    gpus = settings.sampler_gpus
    if gpus is None:
        gpus = 0.0 if model.on_cpu else 1.0
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(connected(settings.sampler_ray, {}, "sampler_ray"))
        mark = folder / f".seen-{secrets.token_hex(8)}"
        mark.touch()
        stack.callback(mark.unlink, missing_ok=True)
        variables = {name: value for name, value in os.environ.items() if name.startswith(_VARIABLES)}
        setup = cluster.put(ServerSetup(settings, model, folder, mark.name, key, variables))
        servers = [
            RayServer(cluster, setup, number, folder / log_name(number), settings.sampler_cpus, gpus)
            for number in range(settings.sampler_replicas)
        ]
        return StartedServers(servers, settings.sampler_timeout, note, stack.pop_all().close)
