"""The interface of every strategy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from ..store import LightningStore
from .events import ExecutionEvent

AlgorithmBundle: TypeAlias = Callable[[LightningStore, ExecutionEvent], Awaitable[None]]
"""Runs the algorithm to its end."""

RunnerBundle: TypeAlias = Callable[[LightningStore, int, ExecutionEvent], Awaitable[None]]
"""Runs one runner, of the given number, until the event is set.

Its worker has the name that `runner.worker_name` gives to the number, as with `run_context(worker_id=number)`; by that
name a strategy finds what a runner was running whose process has died.
"""


class ExecutionStrategy(ABC):
    """A way to run one algorithm and its runners against one store."""

    n_runners: int | None = None
    """Number of runners, at most; None where it is not known."""
    server_port: int | None = None
    """Port of the store's server; None for a strategy without one."""

    @abstractmethod
    def execute(self, algorithm: AlgorithmBundle, runner: RunnerBundle, store: LightningStore) -> None:
        """Return when the algorithm has ended and the runners have stopped.

        Raises:
            Exception: whatever the algorithm raised.
            KeyboardInterrupt: the run was interrupted; everything has been stopped.
        """

    def stop(self) -> bool:
        """Ask a run to end that has no role in this process, from another thread; False if there is none to ask."""
        return False
