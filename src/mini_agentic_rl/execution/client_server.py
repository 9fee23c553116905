"""Several processes around one store: the algorithm in one, each runner in another, on one machine or many.

The processes share a store over HTTP. The strategy serves the given store (managed), or the store is already served
elsewhere (external).

| role | what runs here |
|---|---|
| `both` | the algorithm in this process and each runner in a process of its own, or vice versa (`main_process`) |
| `algorithm` | the algorithm, and the server of a managed store; runners run elsewhere |
| `runner` | runners only, until they are stopped; an outage of the store does not end them |

A runner process that dies is replaced. Its rollout goes back to the queue: the worker's record in the store, written
together with the claim, names the attempt.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import pickle
import socket
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

from ..config import LightningEnvVar, resolve_bool_env_var, resolve_int_env_var, resolve_str_env_var
from ..errors import UserError
from ..processes import Child, describe_exit, dumps
from ..runner import give_back_of_worker, set_worker_label, watch_workers, worker_name
from ..store import LightningStore, LightningStoreClient, LightningStoreServer
from .base import AlgorithmBundle, ExecutionEvent, ExecutionStrategy, RunnerBundle, ThreadingEvent
from .roles import Backoff, RoleSetup, run_here, run_side_by_side, run_until_set

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Patience:
    """The seconds to wait between the steps of ending a process."""

    graceful_timeout: float
    terminate_timeout: float

    @property
    def total(self) -> float:
        """Seconds that all four steps can take."""
        return self.graceful_timeout + 2 * self.terminate_timeout + 5.0


class ChildProcesses:
    """The processes of a role."""

    def __init__(self, setup: RoleSetup, patience: Patience) -> None:
        self._setup = setup
        self._patience = patience
        self._children: dict[int, Child] = {}
        self.exit_codes: dict[int, int] = {}
        """Exit code by number, of those that ended by themselves or were stopped."""

    def kill(self) -> None:
        """End all of them at once, from any thread."""
        for child in list(self._children.values()):
            child.end(0)

    async def _run_child(self, name: str, index: int, stopping: asyncio.Future[Any]) -> int:
        """Run a process until it ends or `stopping` is done; return its exit code once all its descendants have ended.

        Raises:
            Exception: the process could not load its bundle, or its algorithm failed.
        """
        setup = replace(self._setup, index=index)
        child = self._children[index] = Child(name, setup.entry, setup, setup.orphan_seconds)
        try:
            try:
                await asyncio.wait({child.ended, stopping}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                await self._stop(child)
        finally:
            failure = child.close()
        if failure is not None:
            raise failure
        return child.ended.result()

    async def _stop(self, child: Child) -> None:
        """End a process in four steps: stop message, SIGINT, SIGTERM, SIGKILL; the last two go to its descendants too.

        When cancelled, go to the last step at once.
        """
        graceful, terminate = self._patience.graceful_timeout, self._patience.terminate_timeout
        try:
            child.stop()
            await asyncio.wait({child.ended}, timeout=graceful)  # with 0 seconds too, done for a process that has ended
            if not child.ended.done():
                logger.warning("%s did not stop within graceful_timeout=%g s and is interrupted", child.name, graceful)
                child.interrupt()
                await asyncio.wait({child.ended}, timeout=terminate)
                if not child.ended.done():
                    logger.warning("%s did not stop within terminate_timeout=%g s and is ended", child.name, terminate)
            await asyncio.to_thread(child.end, terminate)
        except asyncio.CancelledError:
            child.end(0)
            raise
        await asyncio.wait({child.ended})


class RunnerProcesses(ChildProcesses):
    """`n_runners` processes with one runner each."""

    def __init__(self, setup: RoleSetup, n_runners: int, patience: Patience) -> None:
        super().__init__(setup, patience)
        self._n_runners = n_runners
        self._store: LightningStore | None = None

    async def run(self, event: ExecutionEvent) -> None:
        """Run the runners until the event is set or all have ended by themselves; no process is left afterwards.

        Raises:
            Exception: a runner's process cannot be started, or cannot load the bundle; the event is set then.
        """
        slots = [asyncio.ensure_future(self._keep(index, event)) for index in range(self._n_runners)]
        try:
            await asyncio.wait(slots, return_when=asyncio.FIRST_EXCEPTION)
            errors = [slot.exception() for slot in slots if slot.done() and not slot.cancelled()]
            error = next((error for error in errors if error is not None), None)
            if error is not None:
                raise error
            if not event.is_set():
                logger.info("all %d runners have ended before the algorithm", self._n_runners)
        except BaseException:
            event.set()
            await asyncio.wait(slots)
            raise
        finally:
            if self._store is not None:
                await self._store.close()

    async def _keep(self, index: int, event: ExecutionEvent) -> None:
        backoff = Backoff()
        stopping = asyncio.ensure_future(event.wait_async())
        try:
            while not event.is_set():
                started = time.monotonic()
                code = await self._run_child(f"runner-{index}", index, stopping)
                died = code != 0 and not event.is_set()
                logger.log(logging.ERROR if died else logging.INFO, "runner %d %s", index, describe_exit(code))
                if code != 0:
                    if self._store is None:
                        self._store = pickle.loads(self._setup.store)
                    worker_id = worker_name(index, self._setup.worker_label)
                    await give_back_of_worker(self._store, worker_id, f"its runner's process {describe_exit(code)}")
                if not died:
                    self.exit_codes[index] = code
                    return
                delay = backoff.after_run(time.monotonic() - started)
                logger.info("runner %d is started again in %g s", index, delay)
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(asyncio.shield(stopping), delay)
        finally:
            stopping.cancel()


class AlgorithmProcess(ChildProcesses):
    """The process that runs the algorithm once. Its state is not copied back."""

    async def run(self, event: ExecutionEvent) -> None:
        """Run it to its end, or stop it when the event is set; the event is set afterwards.

        Raises:
            Exception: what the algorithm raised: of a class of that name, caused by its traceback.
            RuntimeError: the process died.
        """
        stopping = asyncio.ensure_future(event.wait_async())
        try:
            self.exit_codes[0] = code = await self._run_child("algorithm", 0, stopping)
            if code != 0 and not event.is_set():
                raise RuntimeError(f"the algorithm's process {describe_exit(code)}")
        finally:
            stopping.cancel()
            event.set()


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

    A runner process is a fresh interpreter: it gets agent, hooks and runner pickled, and imports only what they need. A
    process that dies is replaced, and its rollout goes back to the queue. At the end each process gets a stop message;
    after `graceful_timeout` SIGINT, after `terminate_timeout` SIGTERM, after that time again SIGKILL, the last two
    together with its descendants. Ctrl-C does the same; a second Ctrl-C goes to SIGKILL.

    Args:
        role: the role of this process; None takes AGL_CURRENT_ROLE, else `both`.
        server_host: host of the store server; None takes AGL_SERVER_HOST, else the loopback address. Any other needs an
            `api_key`.
        server_port: its port; None takes AGL_SERVER_PORT, else 4747. 0 takes a free port, with the role `both` only.
        n_runners: number of runners here.
        graceful_timeout: seconds to stop after the stop message.
        terminate_timeout: seconds after SIGINT, and again after SIGTERM.
        main_process: the role that stays in this process under `both`. With the role `runner`, "runner" keeps runners
            in this process, as tasks of one event loop, for debugging.
        managed_store: True serves the store, or uses the server at the address; False uses the given store as it is.
            None takes AGL_MANAGED_STORE, else is True unless the store is a `LightningStoreClient`.
        allowed_exit_codes: exit codes of a stopped process that are no error; minus the number of a signal.
        api_key: bearer token of the store server; None takes AGL_API_KEY.
        silent_seconds: with the role `algorithm`, seconds without a heartbeat after which a runner counts as lost and
            its rollout is queued again.

    Raises:
        ValueError: a setting is out of range; the message names it.
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
        """Run the role of this process. Not callable from inside a running event loop.

        With the role `runner` it returns when every runner has ended by itself, or when it is interrupted.

        Raises:
            UserError: the bundle cannot be sent to another process, or the server cannot be started.
            Exception: whatever the algorithm raised.
            RuntimeError: a process ended with a code that is not among `allowed_exit_codes`.
            KeyboardInterrupt: the run was interrupted; everything has been stopped.
        """
        managed = self.managed_store
        if managed is None:
            managed = not isinstance(store, LightningStoreClient)
        process_label = f"{socket.gethostname()}-{os.getpid()}"  # tells its workers from others of the same store
        if self.role == "runner":
            self._run_runners(runner, self._client() if managed else store, process_label)
            return
        with self._served(store) if managed else contextlib.nullcontext(store) as shared:
            label = None if managed else process_label
            if self.role == "algorithm":
                asyncio.run(_run(algorithm, shared, self.silent_seconds))
            else:
                self._run_both(algorithm, runner, shared, label)

    def _run_runners(self, runner: RunnerBundle, store: LightningStore, label: str) -> None:
        try:
            if self.main_process == "runner":
                with _labelled(label):
                    asyncio.run(run_here(runner, store, self.n_runners, self._ending))
                return
            processes = RunnerProcesses(self._setup("runner", runner, store, label), self.n_runners, self.patience)
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
        event = ThreadingEvent()
        processes: RunnerProcesses | AlgorithmProcess

        async def run_algorithm() -> None:
            try:
                await run_until_set(algorithm, store, event, self.patience.graceful_timeout / 2)
            finally:
                event.set()

        async def run_runners() -> None:
            await run_here(runner, store, self.n_runners, event)
            await event.wait_async()

        if self.main_process == "algorithm":
            processes = RunnerProcesses(self._setup("runner", runner, store, label), self.n_runners, self.patience)
            run_side_by_side(run_algorithm, processes, event, self.patience.total)
        else:
            processes = AlgorithmProcess(self._setup("algorithm", algorithm, store, None), self.patience)
            with _labelled(label):
                run_side_by_side(run_runners, processes, event, self.patience.total)
        self._check(processes.exit_codes)

    def _setup(
        self, role: Literal["algorithm", "runner"], bundle: Any, store: LightningStore, label: str | None
    ) -> RoleSetup:
        return RoleSetup(
            entry=f"{__package__}.roles:run_{role}",
            bundle=dumps(bundle, f"the {role}", _BUNDLE_ADVICE),
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
