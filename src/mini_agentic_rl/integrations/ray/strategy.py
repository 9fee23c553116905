"""The strategy that runs an algorithm here and its runners as actors of a Ray cluster."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import yaml

from ...config import LightningEnvVar, resolve_bool_env_var, resolve_int_env_var, resolve_str_env_var
from ...errors import UserError
from ...execution import RaySettings
from ...execution.base import AlgorithmBundle, ExecutionStrategy, RunnerBundle, ThreadingEvent
from ...execution.client_server import Patience
from ...execution.roles import run_side_by_side, run_until_set
from ...http import reached_at
from ...logging import PACKAGE_LOGGER
from ...processes import dumps
from ...redaction import remember_secrets
from ...store import LightningStore, LightningStoreClient, LightningStoreServer
from .cluster import RunnerSetup, connected
from .runners import RayRunners

_KILL_SECONDS: Final = 5.0
_EVERYWHERE: Final = ("0.0.0.0", "::")
_ADVICE: Final = (
    "Create it inside the agent or the hook; or define agent and hook in a module, which the node then imports; or use "
    "`strategy='shm'`, which sends nothing."
)


class RayExecutionStrategy(ExecutionStrategy):
    """The algorithm in this process, each runner an actor of a Ray cluster, on any node with free resources.

    The agent, the hooks and the runner are pickled; this package and their imports have to be installed on the nodes.
    The store, and the model if the algorithm serves one, are served from this process, with a key, at an address that
    the nodes can reach. A runner that dies is replaced, and its rollout is requeued.

    Args:
        n_runners: number of runners.
        settings: the settings of Ray.
        runner_env: Ray's runtime environment as a mapping, or what `RaySettings.runner_env` may be.
        server_host: host of the store server; None takes AGL_SERVER_HOST, else this computer's address in the cluster.
        server_port: its port; None takes AGL_SERVER_PORT, else any free one.
        managed_store: True serves the store; False means that the given store is one that every node reaches as it is.
            None takes AGL_MANAGED_STORE, else is True unless the store is a `LightningStoreClient`.
        api_key: bearer token of the store server; None takes AGL_API_KEY, else makes one for the run.
        graceful_timeout: seconds that a runner has to stop before it is killed.
        options: settings of `RaySettings` by name.

    Raises:
        ValueError: a setting that cannot work, by name.
        UserError: `runner_env` names no environment.
    """

    def __init__(
        self,
        n_runners: int = 8,
        settings: RaySettings | None = None,
        *,
        runner_env: str | Mapping[str, Any] | None = None,
        server_host: str | None = None,
        server_port: int | None = None,
        managed_store: bool | None = None,
        api_key: str | None = None,
        graceful_timeout: float = 10.0,
        **options: Any,
    ) -> None:
        if n_runners < 1:
            raise ValueError(f"n_runners must be 1 or more, not {n_runners}: without a runner no rollout is ever run")
        if graceful_timeout < 0:
            raise ValueError(f"graceful_timeout must be 0 or more, not {graceful_timeout}")
        self.n_runners: int = n_runners
        self.settings = (settings or RaySettings()).changed(**options)
        self.environment = runtime_environment(self.settings.runner_env if runner_env is None else runner_env)
        self.server_host = resolve_str_env_var(LightningEnvVar.AGL_SERVER_HOST, server_host)
        self.server_port = resolve_int_env_var(LightningEnvVar.AGL_SERVER_PORT, server_port, fallback=0)
        self.managed_store = resolve_bool_env_var(LightningEnvVar.AGL_MANAGED_STORE, managed_store)
        self.api_key = resolve_str_env_var(LightningEnvVar.AGL_API_KEY, api_key)
        self.patience = Patience(graceful_timeout, _KILL_SECONDS)

    def execute(self, algorithm: AlgorithmBundle, runner: RunnerBundle, store: LightningStore) -> None:
        """Run both roles to the end of the algorithm. Not callable from inside a running event loop.

        Raises:
            UserError: there is no cluster, the bundle cannot be sent, or the runners cannot be started or reached.
            Exception: whatever the algorithm raised.
            KeyboardInterrupt: the run was interrupted; everything has been stopped.
        """
        bundle = dumps(runner, "the runner", _ADVICE)
        managed = self.managed_store
        if managed is None:
            managed = not isinstance(store, LightningStoreClient)
        settings, ours = self.settings, logging.getLogger(PACKAGE_LOGGER)
        log_level = ours.level if ours.handlers else None
        event = ThreadingEvent()
        with connected(settings.address, self.environment) as cluster:
            host = cluster.host if self.server_host in (None, *_EVERYWHERE) else str(self.server_host)
            label = None if managed else f"{socket.gethostname()}-{os.getpid()}"
            served = self._served(store, host) if managed else contextlib.nullcontext((store, store))
            with served as (mine, theirs), reached_at(host):
                if isinstance(theirs, LightningStoreClient):
                    cluster.check_reach(theirs)
                setup = RunnerSetup(bundle, dumps(theirs, "the store", _ADVICE), tuple(sys.path), log_level, label)
                cpus, gpus = settings.runner_cpus, settings.runner_gpus
                runners = RayRunners(cluster, setup, self.n_runners, self.patience, cpus, gpus)

                async def work() -> None:
                    try:
                        await run_until_set(algorithm, mine, event, self.patience.graceful_timeout / 2)
                    finally:
                        event.set()

                run_side_by_side(work, runners, event, self.patience.total)

    @contextmanager
    def _served(self, store: LightningStore, host: str) -> Iterator[tuple[LightningStore, LightningStore]]:
        """Serve a store; yield the store for this process, and the client for other nodes."""
        key = self.api_key or secrets.token_urlsafe(32)
        server = LightningStoreServer(store, self.server_host or host, self.server_port, api_key=key)
        try:
            asyncio.run(server.start())
            port = urlsplit(server.endpoint).port
            address = f"[{host}]" if ":" in host else host
            yield server, LightningStoreClient(f"http://{address}:{port}", api_key=key)
        finally:
            asyncio.run(server.stop())


_FILES: Final = (".yaml", ".yml", ".json")


def runtime_environment(given: str | Mapping[str, Any] | None) -> dict[str, Any]:
    """Return Ray's runtime environment for a value of `runner_env`; secrets in it are hidden in logs from now on.

    Raises:
        UserError: there is no such folder or file, or the file holds no environment.
    """
    if given is None:
        return {}
    if isinstance(given, Mapping):
        remember_secrets(given)
        return dict(given)
    path = Path(given).expanduser()
    if "://" in given or path.is_dir():
        return {"working_dir": given if "://" in given else str(path.resolve())}
    if path.suffix not in _FILES or not path.is_file():
        raise UserError(
            f"{given} is neither a folder, nor the URL of one, nor a YAML file with a runtime environment",
            setting="runner_env",
        )
    try:
        environment = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{given} cannot be read: {' '.join(str(error).split())}", setting="runner_env") from error
    if not isinstance(environment, dict) or not all(isinstance(name, str) for name in environment):
        raise UserError(
            f"{given} holds no runtime environment: write names and values, as `env_vars: {{NAME: value}}`",
            setting="runner_env",
        )
    remember_secrets(environment)
    return environment
