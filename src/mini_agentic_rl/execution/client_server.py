"""Several processes around one store: the algorithm in one, each runner in another, on one machine or on many.

The processes meet at a store that can be reached over HTTP. Either the strategy serves the given store itself
(managed), or the given store is one that is reached from elsewhere already (external).

| role | what runs here |
|---|---|
| `both` | the algorithm in this process, each runner in a process of its own (or the other way round: `main_process`) |
| `algorithm` | the algorithm, and the server of a managed store; runners come from elsewhere |
| `runner` | runners alone, until they are stopped; a store that is away for a while does not end them |
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

from ..config import LightningEnvVar, resolve_bool_env_var, resolve_int_env_var, resolve_str_env_var
from ..errors import UserError
from ..runner import set_worker_label, watch_workers
from ..runner.processes import describe_exit, dumps
from ..store import LightningStore, LightningStoreClient, LightningStoreServer
from .base import AlgorithmBundle, ExecutionStrategy, RunnerBundle
from .events import ThreadingEvent
from .role_main import RoleSetup, run_until_set
from .role_processes import AlgorithmProcess, Patience, RunnerProcesses
from .roles import run_here
from .side_by_side import run_side_by_side

Role = Literal["algorithm", "runner", "both"]

_DEFAULT_HOST = "127.0.0.1"
_DEFAULT_PORT = 4747
_BUNDLE_ADVICE = (
    "Make it where it is used, inside the agent, the hook or the algorithm; or define those in a module of their own, "
    "which is then imported there; or use `strategy='shm'`, which needs no other process."
)
_STORE_ADVICE = (
    "Leave `managed_store` (AGL_MANAGED_STORE) on, so that the store is served; or give a store that is served."
)


class ClientServerExecutionStrategy(ExecutionStrategy):
    """The algorithm and its runners in different processes.

    A runner process is a fresh interpreter: it gets agent, hooks and runner pickled, and imports what they need and no
    more. One that dies is replaced, and what it was running goes back to the queue. At the end each process is asked to
    stop; after `graceful_timeout` it gets SIGINT, after `terminate_timeout` SIGTERM, after that time again SIGKILL,
    the last two together with everything that it has started. Ctrl-C does the same; a second one goes to SIGKILL.

    Args:
        role: what runs here; None takes AGL_CURRENT_ROLE, else `both`.
        server_host: host of the store server; None takes AGL_SERVER_HOST, else this computer's loopback. Anything else
            needs an `api_key`.
        server_port: its port; None takes AGL_SERVER_PORT, else 4747. 0 takes any free one, with the role `both`.
        n_runners: how many runners run here.
        graceful_timeout: seconds for a process to stop after it was asked to.
        terminate_timeout: seconds after SIGINT, and again after SIGTERM.
        main_process: the role that stays in this process under `both`. With the role `runner`, "runner" keeps runners
            in this process, as tasks of one event loop, which is what a debugger wants.
        managed_store: True serves the store, or asks the server at the address; False means that the given store
            is used as it is. None takes AGL_MANAGED_STORE, else is True unless the store is a `LightningStoreClient`.
        allowed_exit_codes: exit codes of a stopped process that are no error; minus the number of a signal.
        api_key: bearer token of the store server; None takes AGL_API_KEY.
        silent_seconds: with the role `algorithm`, seconds without a heartbeat after which a runner is taken for lost,
            and what it was running is queued again.

    Raises:
        ValueError: a setting that cannot work, by name.
    """

    def __init__(
        self,
        role: Role | None = None,
        server_host: str | None = None,
        server_port: int | None = None,
        n_runners: int = 1,
        graceful_timeout: float = 10.0,
        terminate_timeout: float = 10.0,
        main_process: Literal["algorithm", "runner"] = "algorithm",
        managed_store: bool | None = None,
        allowed_exit_codes: Iterable[int] = (0, -15),
        *,
        api_key: str | None = None,
        silent_seconds: float = 90.0,
    ) -> None:
        chosen: str = resolve_str_env_var(LightningEnvVar.AGL_CURRENT_ROLE, role, fallback="both")
        if chosen not in ("algorithm", "runner", "both"):
            raise ValueError(f"role (AGL_CURRENT_ROLE) must be 'algorithm', 'runner' or 'both', not {chosen!r}")
        if main_process not in ("algorithm", "runner"):
            raise ValueError(f"main_process must be 'algorithm' or 'runner', not {main_process!r}")
        if n_runners < 1:
            raise ValueError(f"n_runners must be 1 or more, not {n_runners}: without a runner no rollout is ever run")
        for name, seconds in (("graceful_timeout", graceful_timeout), ("terminate_timeout", terminate_timeout)):
            if seconds < 0:
                raise ValueError(f"{name} must be 0 or more, not {seconds}")
        if silent_seconds <= 0:
            raise ValueError(f"silent_seconds must be more than 0, not {silent_seconds}")
        self.role = chosen
        self.server_host = resolve_str_env_var(LightningEnvVar.AGL_SERVER_HOST, server_host, fallback=_DEFAULT_HOST)
        self.server_port = resolve_int_env_var(LightningEnvVar.AGL_SERVER_PORT, server_port, fallback=_DEFAULT_PORT)
        if self.server_port == 0 and chosen != "both":
            raise ValueError(f"server_port (AGL_SERVER_PORT) must name the port for the role {chosen!r}, not 0")
        self.n_runners: int = n_runners
        self.patience = Patience(graceful_timeout, terminate_timeout)
        self.main_process = main_process
        self.managed_store = resolve_bool_env_var(LightningEnvVar.AGL_MANAGED_STORE, managed_store)
        self.allowed_exit_codes = frozenset(allowed_exit_codes)
        self.api_key = resolve_str_env_var(LightningEnvVar.AGL_API_KEY, api_key)
        self.silent_seconds = silent_seconds
        self._ending = ThreadingEvent()

    def stop(self) -> bool:
        if self.role != "runner":
            return False
        self._ending.set()
        return True

    def execute(self, algorithm: AlgorithmBundle, runner: RunnerBundle, store: LightningStore) -> None:
        """Run what the role says. Not callable from inside a running event loop.

        With the role `runner` it returns when every runner has ended by itself, otherwise when it is interrupted.

        Raises:
            UserError: the bundle cannot be sent to another process, or the server cannot be started.
            Exception: whatever the algorithm raised.
            RuntimeError: a process ended with a code that is not among `allowed_exit_codes`.
            KeyboardInterrupt: the run was interrupted; everything has been stopped.
        """
        managed = self.managed_store
        if managed is None:
            managed = not isinstance(store, LightningStoreClient)
        if self.role == "runner":
            self._run_runners(runner, self._client() if managed else store, _label())
            return
        with self._served(store) if managed else contextlib.nullcontext(store) as shared:
            label = None if managed else _label()
            if self.role == "algorithm":
                asyncio.run(_run(algorithm, shared, self.silent_seconds))
            elif self.main_process == "algorithm":
                self._run_both(algorithm, runner, shared, label)
            else:
                self._run_both_the_other_way_round(algorithm, runner, shared, label)

    def _run_runners(self, runner: RunnerBundle, store: LightningStore, label: str) -> None:
        try:
            if self.main_process == "runner":
                with _labelled(label):
                    asyncio.run(run_here(runner, store, self.n_runners, self._ending))
                return
            processes = RunnerProcesses(self._setup("the runner", runner, store, label), self.n_runners, self.patience)
            try:
                asyncio.run(processes.run(self._ending))
            except BaseException:
                processes.kill()
                raise
            self._check(processes.exit_codes)
        finally:
            self._ending = ThreadingEvent()  # for the next run

    def _run_both(
        self, algorithm: AlgorithmBundle, runner: RunnerBundle, store: LightningStore, label: str | None
    ) -> None:
        processes = RunnerProcesses(self._setup("the runner", runner, store, label), self.n_runners, self.patience)
        event = ThreadingEvent()

        async def mine() -> None:
            try:
                await run_until_set(algorithm, store, event, self.patience.graceful_timeout / 2)
            finally:
                event.set()

        run_side_by_side(mine, processes, event, self.patience.total)
        self._check(processes.exit_codes)

    def _run_both_the_other_way_round(
        self, algorithm: AlgorithmBundle, runner: RunnerBundle, store: LightningStore, label: str | None
    ) -> None:
        process = AlgorithmProcess(self._setup("the algorithm", algorithm, store, None), self.patience)
        event = ThreadingEvent()

        async def mine() -> None:
            await run_here(runner, store, self.n_runners, event)
            await event.wait_async()

        with _labelled(label):
            run_side_by_side(mine, process, event, self.patience.total)
        self._check({} if process.exit_code is None else {0: process.exit_code})

    def _setup(self, name: str, bundle: Any, store: LightningStore, label: str | None) -> RoleSetup:
        return RoleSetup(
            bundle=dumps(bundle, name, _BUNDLE_ADVICE),
            store=dumps(store, "the store", _STORE_ADVICE),
            orphan_seconds=self.patience.graceful_timeout,
            worker_label=label,
        )

    @contextmanager
    def _served(self, store: LightningStore) -> Iterator[LightningStore]:
        server = LightningStoreServer(store, self.server_host, self.server_port, api_key=self.api_key)
        try:
            asyncio.run(server.start())
            yield server
        finally:
            asyncio.run(server.stop())

    def _client(self) -> LightningStoreClient:
        if self.server_host in ("0.0.0.0", "::"):
            raise UserError(
                f"{self.server_host} (AGL_SERVER_HOST) is an address to listen at; for `role=runner` name the computer "
                "that the server runs on",
                setting="server_host",
            )
        return LightningStoreClient(f"http://{self.server_host}:{self.server_port}", api_key=self.api_key)

    def _check(self, exit_codes: dict[int, int]) -> None:
        wrong = [
            f"process {index} {describe_exit(code)}"
            for index, code in sorted(exit_codes.items())
            if code not in self.allowed_exit_codes
        ]
        if wrong:
            allowed = sorted(self.allowed_exit_codes)
            raise RuntimeError(f"{', '.join(wrong)}; allowed_exit_codes are {allowed}")


def _label() -> str:
    """Tells the workers of this run from those of others on the same store."""
    return f"{socket.gethostname()}-{os.getpid()}"


@contextmanager
def _labelled(label: str | None) -> Iterator[None]:
    set_worker_label(label)
    try:
        yield
    finally:
        set_worker_label(None)


async def _run(algorithm: AlgorithmBundle, store: LightningStore, silent_seconds: float) -> None:
    watching = asyncio.ensure_future(watch_workers(store, silent_seconds))
    try:
        await algorithm(store, ThreadingEvent())
    finally:
        watching.cancel()
