"""One process for everything: the algorithm in one event loop, all runners as tasks of another one.

Runners wait far more than they work, so a hundred of them cost no more than one thread. The price: an async agent that
blocks its event loop blocks all runners.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from typing import Final, Literal

from ..store import LightningStore, LightningStoreThreaded
from .base import AlgorithmBundle, ExecutionEvent, ExecutionStrategy, RunnerBundle, ThreadingEvent
from .roles import RoleThread, run_here

logger = logging.getLogger(__name__)

_MOST_CRASHES: Final = 5
"""A runner that crashes so often in a row will not run any more."""


class SharedMemoryExecutionStrategy(ExecutionStrategy):
    """The algorithm and `n_runners` runners in this process.

    The run ends with the algorithm. A runner that crashes is logged and started again after a second; one that crashes
    again and again ends the run.

    Args:
        n_runners: how many rollouts run at once.
        main_thread: the role that runs in the calling thread; Ctrl-C ends the run cleanly either way.
        join_timeout: seconds to wait for the other role at the end; it is given up after that.
        graceful_delay: seconds after the event of the run is set in which a role may end by itself before it is
            cancelled; None leaves it to the roles, which end at once as a trainer runs them.
        poll_interval: at most so many seconds pass before the event is seen.
        managed_store: False hands the store to both threads as it is; else one that only one thread may call at a time
            is called from a thread of its own.

    Raises:
        ValueError: a setting that cannot work, by name.
    """

    def __init__(
        self,
        n_runners: int = 1,
        main_thread: Literal["algorithm", "runner"] = "algorithm",
        join_timeout: float = 15.0,
        graceful_delay: float | None = None,
        poll_interval: float = 0.05,
        managed_store: bool | None = None,
    ) -> None:
        if n_runners < 1:
            raise ValueError(f"n_runners must be 1 or more, not {n_runners}: without a runner no rollout is ever run")
        if main_thread not in ("algorithm", "runner"):
            raise ValueError(f"main_thread must be 'algorithm' or 'runner', not {main_thread!r}")
        for name, seconds in (("join_timeout", join_timeout), ("graceful_delay", graceful_delay)):
            if seconds is not None and seconds < 0:
                raise ValueError(f"{name} must be 0 or more, not {seconds}")
        if poll_interval <= 0:
            raise ValueError(f"poll_interval must be more than 0, not {poll_interval}")
        self.n_runners: int = n_runners
        self.main_thread = main_thread
        self.join_timeout = join_timeout
        self.graceful_delay = graceful_delay
        self.poll_interval = poll_interval
        self.managed_store = managed_store is not False

    def execute(self, algorithm: AlgorithmBundle, runner: RunnerBundle, store: LightningStore) -> None:
        """Run both roles to the end of the algorithm. Not callable from inside a running event loop.

        Raises:
            Exception: whatever the algorithm raised, or a runner that crashed again and again.
            KeyboardInterrupt: the run was interrupted; everything has been stopped.
        """
        event, broken = ThreadingEvent(), ThreadingEvent()
        wrapped = None
        if self.managed_store and not store.capabilities["thread_safe"]:
            store = wrapped = LightningStoreThreaded(store)

        async def run_algorithm() -> None:
            try:
                await self._until_over(algorithm(store, event), event, broken)
            except asyncio.CancelledError:
                if not broken.is_set():
                    raise
            finally:
                event.set()

        async def run_runners() -> None:
            try:
                runners = run_here(runner, store, self.n_runners, event, _MOST_CRASHES)
                await self._until_over(runners, event, broken)
            except Exception:  # whatever ended the runners has to end the algorithm that waits for them
                broken.set()
                event.set()
                raise

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
            if wrapped is not None:
                wrapped.release()
        if other.error is not None:
            if self.main_thread == "runner" or broken.is_set():
                raise other.error
            logger.error("the runners ended early", exc_info=other.error)

    async def _until_over(self, work: Awaitable[None], event: ExecutionEvent, broken: ExecutionEvent) -> None:
        """Await `work`; cancel it when the run is broken, and `graceful_delay` after the event is set."""
        task = asyncio.ensure_future(work)
        ends = [asyncio.ensure_future(broken.wait_async())]
        if self.graceful_delay is not None:
            ends.append(asyncio.ensure_future(self._grace(event, self.graceful_delay)))
        try:
            await asyncio.wait({task, *ends}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for end in ends:
                end.cancel()
            given_up = not task.done()
            if given_up:
                task.cancel()
                await asyncio.wait({task})
        if not (given_up and task.cancelled()):
            await task

    async def _grace(self, event: ExecutionEvent, seconds: float) -> None:
        while not event.is_set():  # noqa: ASYNC110  # an event of the user's own may not wake a coroutine
            await asyncio.sleep(self.poll_interval)
        await asyncio.sleep(seconds)
