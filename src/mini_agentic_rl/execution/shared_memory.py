"""The algorithm and its runners in one process, each role in an event loop of its own.

Runners mostly wait for the model, so a hundred of them share one thread. An async agent that blocks its event loop
therefore blocks all runners.
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

_MAX_CRASHES: Final = 5
"""Crashes of a runner in a row that end the run."""


class SharedMemoryExecutionStrategy(ExecutionStrategy):
    """The algorithm and `n_runners` runners in this process.

    The run ends with the algorithm. A runner that crashes is logged and restarted with a growing delay; the fifth crash
    in a row ends the run.

    Args:
        n_runners: how many rollouts run at once.
        main_thread: the role that runs in the calling thread; Ctrl-C ends the run cleanly either way.
        join_timeout: seconds to wait for the other role at the end, before its thread is abandoned.
        graceful_delay: seconds after the event of the run is set in which a role may end by itself before it is
            cancelled; None never cancels: the roles of a trainer end at once.
        poll_interval: accepted without effect: the event wakes the roles.
        managed_store: False hands the store to both threads as it is; otherwise a store that is not thread-safe is
            called from a thread of its own.

    Raises:
        ValueError: a setting is out of range; the message names it.
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
                runners = run_here(runner, store, self.n_runners, event, _MAX_CRASHES)
                await self._until_over(runners, event, broken)
            except Exception:  # the algorithm, which waits for the runners, has to end too
                broken.set()
                event.set()
                raise

        if self.main_thread == "algorithm":
            role, other = run_algorithm, RoleThread("runners", run_runners)
        else:
            role, other = run_runners, RoleThread("algorithm", run_algorithm)
        try:
            other.start()
            asyncio.run(role())
            if self.main_thread == "runner":
                while not event.wait(1.0):  # without a timeout Ctrl-C does not interrupt it on Windows
                    pass
        except BaseException:
            if self.main_thread == "runner":
                other.cancel()
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

        async def grace(seconds: float) -> None:
            await event.wait_async()
            await asyncio.sleep(seconds)

        task = asyncio.ensure_future(work)
        ends = [asyncio.ensure_future(broken.wait_async())]
        if self.graceful_delay is not None:
            ends.append(asyncio.ensure_future(grace(self.graceful_delay)))
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
