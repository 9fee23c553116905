"""Roles in this process: runners as tasks of an event loop, and the other role in a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

from ..errors import UserError
from ..logging import Throttle
from ..store import LightningStore
from .base import RunnerBundle
from .events import ExecutionEvent

logger = logging.getLogger(__name__)

_RESTART_SECONDS = 1.0
_STEADY_SECONDS = 10.0
"""A runner that ran for so long before it crashed has got going; its crashes are counted anew."""


async def run_here(
    runner: RunnerBundle,
    store: LightningStore,
    n_runners: int,
    event: ExecutionEvent,
    most_crashes: int | None = None,
) -> None:
    """Run `n_runners` runners as tasks of this event loop until the event is set, or all have ended by themselves.

    Raises:
        Exception: what a runner raised that crashed `most_crashes` times in a row; None starts it again for ever.
    """
    throttle = Throttle()
    runners = (keep_running(runner, store, index, event, throttle, most_crashes) for index in range(n_runners))
    await asyncio.gather(*runners)
    if not event.is_set():
        logger.info("all %d runners have ended before the algorithm", n_runners)


async def keep_running(
    runner: RunnerBundle,
    store: LightningStore,
    index: int,
    event: ExecutionEvent,
    throttle: Throttle,
    most_crashes: int | None = None,
) -> None:
    """Run the runner of this number, and again when it crashes, until it returns or the event is set.

    Raises:
        Exception: as `run_here`.
    """
    crashes = 0
    while not event.is_set():
        started = time.monotonic()
        try:
            await runner(store, index, event)
            return
        except Exception as error:
            crashes = 1 if time.monotonic() - started > _STEADY_SECONDS else crashes + 1
            if crashes == most_crashes:
                raise
            if throttle.due(repr(error)):
                logger.error(
                    "runner %d crashed and is started again in %g s: %s",
                    index,
                    _RESTART_SECONDS,
                    error,
                    exc_info=None if isinstance(error, UserError) else error,
                )
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(event.wait_async(), _RESTART_SECONDS)


class RoleThread:
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
        """Start the coroutine; raises what kept its event loop from being made."""
        self._thread.start()
        self._started.wait()
        if self._task is None and self.error is not None:
            raise self.error

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
        main = self._main()
        try:
            asyncio.run(main)
        except asyncio.CancelledError:
            logger.info("the %s thread was cancelled", self._name)
        except BaseException as error:  # for the calling thread to deal with
            self.error = error
        finally:
            main.close()
            self._started.set()  # also where no event loop could be made

    async def _main(self) -> None:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.ensure_future(self._coroutine())
        self._started.set()
        await self._task
