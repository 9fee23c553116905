"""The interface of execution strategies, the event that ends a run, and the settings of runners on Ray."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing.synchronize
import threading
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from multiprocessing.context import BaseContext
from typing import TypeAlias

from pydantic import Field

from ..config import Settings
from ..store import LightningStore

_CHECK_SECONDS = 0.1


class ExecutionEvent:
    """An event across threads or processes, over an event of the standard library."""

    _event: threading.Event | multiprocessing.synchronize.Event

    def set(self) -> None:
        """End the run. Safe from any thread."""
        self._event.set()

    def clear(self) -> None:
        """Unset it."""
        self._event.clear()

    def is_set(self) -> bool:
        """Return True if the run is to end."""
        return self._event.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        """Block until it is set, at most `timeout` seconds; return whether it is set."""
        return self._event.wait(timeout)

    async def wait_async(self) -> None:
        """Return once it is set, within a tenth of a second."""
        while not self.is_set():  # noqa: ASYNC110  # the event of another process cannot be awaited
            await asyncio.sleep(_CHECK_SECONDS)


class ThreadingEvent(ExecutionEvent):
    """An event between threads; it wakes waiting coroutines of any event loop at once."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._lock = threading.Lock()
        self._waiting: dict[asyncio.Event, asyncio.AbstractEventLoop] = {}

    def set(self) -> None:
        with self._lock:
            self._event.set()
            waiting, self._waiting = self._waiting, {}
        for waiter, loop in waiting.items():
            with contextlib.suppress(RuntimeError):  # the event loop is closed: nobody waits
                loop.call_soon_threadsafe(waiter.set)

    async def wait_async(self) -> None:
        """Return once it is set."""
        waiter = asyncio.Event()
        with self._lock:
            if self._event.is_set():
                return
            self._waiting[waiter] = asyncio.get_running_loop()
        try:
            await waiter.wait()
        finally:
            with self._lock:
                self._waiting.pop(waiter, None)


class MultiprocessingEvent(ExecutionEvent):
    """An event between processes of the `multiprocessing` module, given to a process when it is made.

    Args:
        ctx: the context that makes the processes; None takes `spawn`.
    """

    def __init__(self, *, ctx: BaseContext | None = None) -> None:
        self._event = (ctx or multiprocessing.get_context("spawn")).Event()


AlgorithmBundle: TypeAlias = Callable[[LightningStore, ExecutionEvent], Awaitable[None]]
"""Runs the algorithm to its end."""

RunnerBundle: TypeAlias = Callable[[LightningStore, int, ExecutionEvent], Awaitable[None]]
"""Runs the runner of the given number until the event is set.

The name of its worker is `runner.worker_name(number)`, as with `run_context(worker_id=number)`. By that name a strategy
finds the rollout of a runner whose process has died.
"""


class ExecutionStrategy(ABC):
    """A way to run one algorithm and its runners against one store."""

    n_runners: int | None = None
    """Largest number of runners; None if unknown."""
    server_port: int | None = None
    """Port of the store server; None without a server."""

    @abstractmethod
    def execute(self, algorithm: AlgorithmBundle, runner: RunnerBundle, store: LightningStore) -> None:
        """Return when the algorithm has ended and the runners have stopped.

        Raises:
            Exception: whatever the algorithm raised.
            KeyboardInterrupt: the run was interrupted; everything has been stopped.
        """

    def stop(self) -> bool:
        """End a run that has no role in this process, from another thread; return False if there is none."""
        return False


class RaySettings(Settings):
    """Settings of runners that are actors of a Ray cluster (`integrations/ray`). Reading them needs no Ray."""

    address: str = Field(default="auto", json_schema_extra={"option": "--ray-address"})
    """Ray cluster of the runners: `auto` is the cluster of this computer or of RAY_ADDRESS, HOST:PORT the cluster
    with that head, `local` a cluster that is started on this computer for the run and ended with it."""
    runner_cpus: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    """Processors that Ray reserves for each runner. A fraction is enough for agents that mostly wait for the model."""
    runner_gpus: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """GPUs that Ray reserves for each runner, for agents with models of their own."""
    runner_env: str | None = None
    """Environment of the runners: a folder, which becomes their working directory on every node, the URL of a ZIP file
    of such a folder, or a YAML file with a runtime environment of Ray (`pip`, `env_vars`, `working_dir`, …)."""
