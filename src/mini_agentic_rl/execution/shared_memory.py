"""Everything in one process: the algorithm in one event loop, all runners as tasks of another one.

Runners wait far more than they work, so a hundred of them cost no more than one thread. The price: an async agent that
blocks its event loop blocks all runners.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Literal

from ..errors import UserError
from ..logging import Throttle
from ..store.base import LightningStore
from .base import AlgorithmBundle, ExecutionStrategy, RunnerBundle
from .events import ExecutionEvent, ThreadingEvent

logger = logging.getLogger(__name__)

_RESTART_SECONDS = 1.0


class SharedMemoryExecutionStrategy(ExecutionStrategy):
    """The algorithm and `n_runners` runners in this process.

    The run ends with the algorithm. A runner that crashes is logged and started again after a second.

    Args:
        n_runners: how many rollouts run at once.
        main_thread: which side runs in the calling thread; Ctrl-C ends the run cleanly either way.
        join_timeout: seconds to wait for the other side at the end; it is given up after that.

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
        """Run both sides to the end of the algorithm. Not callable from inside a running event loop."""
        event = ThreadingEvent()

        async def algorithm_side() -> None:
            try:
                await algorithm(store, event)
            finally:
                event.set()

        async def runner_side() -> None:
            told = Throttle()
            await asyncio.gather(*(_keep_running(runner, store, index, event, told) for index in range(self.n_runners)))
            if not event.is_set():
                logger.info("all %d runners have ended before the algorithm", self.n_runners)

        if self.main_thread == "algorithm":
            mine, other = algorithm_side, _Side("runners", runner_side)
        else:
            mine, other = runner_side, _Side("algorithm", algorithm_side)
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


class _Side:
    """A coroutine in an event loop of its own, in a daemon thread."""

    def __init__(self, name: str, coroutine: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self.error: BaseException | None = None
        self._name = name
        self._coroutine = coroutine
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()
        self._started.wait()

    def cancel_if(self, wanted: bool) -> None:
        """Cancel the coroutine, from another thread."""
        if wanted and self._loop is not None and self._task is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: it has ended by itself
                self._loop.call_soon_threadsafe(self._task.cancel)

    def join(self, timeout: float) -> None:
        if self._thread.ident is None:  # interrupted before it was started
            return
        self._thread.join(timeout)
        if self._thread.is_alive():
            logger.warning("the %s did not stop within join_timeout=%g s and are given up", self._name, timeout)

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except asyncio.CancelledError:
            logger.info("the %s side was cancelled", self._name)
        except BaseException as error:  # for the calling thread to deal with
            self.error = error

    async def _main(self) -> None:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.ensure_future(self._coroutine())
        self._started.set()
        await self._task


async def _keep_running(
    runner: RunnerBundle, store: LightningStore, index: int, event: ExecutionEvent, told: Throttle
) -> None:
    while not event.is_set():
        try:
            await runner(store, index, event)
            return
        except Exception as error:
            if told.due(repr(error)):
                logger.error(
                    "runner %d crashed and is started again in %g s: %s",
                    index,
                    _RESTART_SECONDS,
                    error,
                    exc_info=None if isinstance(error, UserError) else error,
                )
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(event.wait_async(), _RESTART_SECONDS)
