"""One process for everything: the algorithm in one event loop, all runners as tasks of another one.

Runners wait far more than they work, so a hundred of them cost no more than one thread. The price: an async agent that
blocks its event loop blocks all runners.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Literal

from ..store import LightningStore
from .base import AlgorithmBundle, ExecutionStrategy, RunnerBundle
from .events import ThreadingEvent
from .roles import RoleThread, run_here

logger = logging.getLogger(__name__)


class SharedMemoryExecutionStrategy(ExecutionStrategy):
    """The algorithm and `n_runners` runners in this process.

    The run ends with the algorithm. A runner that crashes is logged and started again after a second.

    Args:
        n_runners: how many rollouts run at once.
        main_thread: the role that runs in the calling thread; Ctrl-C ends the run cleanly either way.
        join_timeout: seconds to wait for the other role at the end; it is given up after that.

    Raises:
        ValueError: a setting that cannot work, by name.
    """

    def __init__(
        self,
        n_runners: int = 1,
        main_thread: Literal["algorithm", "runner"] = "algorithm",
        join_timeout: float = 15.0,
    ) -> None:
        if n_runners < 1:
            raise ValueError(f"n_runners must be 1 or more, not {n_runners}: without a runner no rollout is ever run")
        if main_thread not in ("algorithm", "runner"):
            raise ValueError(f"main_thread must be 'algorithm' or 'runner', not {main_thread!r}")
        if join_timeout < 0:
            raise ValueError(f"join_timeout must be 0 or more, not {join_timeout}")
        self.n_runners = n_runners
        self.main_thread = main_thread
        self.join_timeout = join_timeout

    def execute(self, algorithm: AlgorithmBundle, runner: RunnerBundle, store: LightningStore) -> None:
        """Run both roles to the end of the algorithm. Not callable from inside a running event loop."""
        event = ThreadingEvent()

        async def run_algorithm() -> None:
            try:
                await algorithm(store, event)
            finally:
                event.set()

        async def run_runners() -> None:
            await run_here(runner, store, self.n_runners, event)

        if self.main_thread == "algorithm":
            mine, other = run_algorithm, RoleThread("runners", run_runners)
        else:
            mine, other = run_runners, RoleThread("algorithm", run_algorithm)
        try:
            other.start()
            asyncio.run(mine())
            if self.main_thread == "runner":
                event.wait()
        except BaseException:
            other.cancel_if(self.main_thread == "runner")
            raise
        finally:
            event.set()
            other.join(self.join_timeout)
        if other.error is not None:
            if self.main_thread == "runner":
                raise other.error
            logger.error("the runners ended early", exc_info=other.error)
