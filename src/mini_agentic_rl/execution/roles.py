"""The roles of a run, algorithm and runner, as tasks and threads of this process, or as the code of a child process.

A child process ends when its role ends, when it gets a stop message, or when its parent has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import pickle
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final, Protocol

from ..errors import UserError
from ..logging import Throttle
from ..processes import Parent, Terminated, stops_cleanly
from ..runner import set_worker_label
from ..store import LightningStore
from .base import AlgorithmBundle, ExecutionEvent, RunnerBundle, ThreadingEvent

logger = logging.getLogger(__name__)


_FIRST_DELAY_SECONDS: Final = 0.5
_LONGEST_DELAY_SECONDS: Final = 30.0
_LASTING_SECONDS: Final = 60.0
"""A run that took longer than this resets the delay and the count of crashes."""


class Backoff:
    """Delays between restarts of a runner that crashes: they double, and begin anew after a run that lasted."""

    def __init__(self) -> None:
        self.crashes = 0
        """Number of crashes in a row."""

    def after_run(self, seconds: float) -> float:
        """Count a crash after a run of so many seconds; return the seconds to wait before the next run."""
        self.crashes = 1 if seconds > _LASTING_SECONDS else self.crashes + 1
        doublings = min(self.crashes - 1, 30)
        return min(_LONGEST_DELAY_SECONDS, _FIRST_DELAY_SECONDS * float(2**doublings))


async def run_here(
    runner: RunnerBundle,
    store: LightningStore,
    n_runners: int,
    event: ExecutionEvent,
    max_crashes: int | None = None,
) -> None:
    """Run `n_runners` runners as tasks of this event loop until the event is set, or all have ended by themselves.

    Raises:
        Exception: the last exception of a runner that crashed `max_crashes` times in a row; None restarts it for ever.
    """
    throttle = Throttle()
    runners = (keep_running(runner, store, index, event, throttle, max_crashes) for index in range(n_runners))
    await asyncio.gather(*runners)
    if not event.is_set():
        logger.info("all %d runners have ended before the algorithm", n_runners)


async def keep_running(
    runner: RunnerBundle,
    store: LightningStore,
    index: int,
    event: ExecutionEvent,
    throttle: Throttle,
    max_crashes: int | None = None,
) -> None:
    """Run one runner, and restart it when it crashes, until it returns or the event is set.

    Raises:
        Exception: as `run_here`.
    """
    backoff = Backoff()
    while not event.is_set():
        started = time.monotonic()
        try:
            await runner(store, index, event)
            return
        except Exception as error:
            delay = backoff.after_run(time.monotonic() - started)
            if backoff.crashes == max_crashes:
                raise
            if throttle.due(repr(error)):
                traceback = None if isinstance(error, UserError) else error
                logger.error(
                    "runner %d crashed and is started again in %g s: %s", index, delay, error, exc_info=traceback
                )
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(event.wait_async(), delay)


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
        """Start the coroutine.

        Raises:
            Exception: its event loop could not be made.
        """
        self._thread.start()
        self._started.wait()
        if self._task is None and self.error is not None:
            raise self.error

    def cancel(self) -> None:
        """Cancel the coroutine, from another thread."""
        if self._loop is not None and self._task is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: it has ended by itself
                self._loop.call_soon_threadsafe(self._task.cancel)

    def join(self, timeout: float) -> None:
        """Wait for its end, at most `timeout` seconds."""
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
        except BaseException as error:  # the calling thread raises or logs it
            self.error = error
        finally:
            main.close()
            self._started.set()  # also where no event loop could be made

    async def _main(self) -> None:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.ensure_future(self._coroutine())
        self._started.set()
        await self._task


_INTERRUPTED = 130
"""Exit code of a process that was interrupted without being told to stop."""


@dataclass(frozen=True)
class RoleSetup:
    """The role of a child process."""

    entry: str
    """Function of this module that it calls."""
    bundle: bytes
    """Pickle of the bundle to run."""
    store: bytes
    """Pickle of the store, or of a client of it."""
    orphan_seconds: float
    """Seconds that it may take to end once its parent has ended."""
    index: int = 0
    """Number of the runner."""
    worker_label: str | None = None
    """Label of the worker's name (`runner.set_worker_label`)."""


def run_runner(setup: RoleSetup, parent: Parent) -> None:
    """Run one runner; the entry of a child process."""
    bundle, store, event = _loaded(setup, parent)
    set_worker_label(setup.worker_label)

    async def run() -> None:
        try:
            await keep_running(bundle, store, setup.index, event, Throttle())
        finally:
            await store.close()

    try:
        with stops_cleanly():
            asyncio.run(run())
    except (KeyboardInterrupt, Terminated):
        if not event.is_set():
            sys.exit(_INTERRUPTED)
    finally:
        parent.end_others()


def run_algorithm(setup: RoleSetup, parent: Parent) -> None:
    """Run the algorithm; the entry of a child process."""
    bundle, store, event = _loaded(setup, parent)
    try:
        with stops_cleanly():
            asyncio.run(run_until_set(bundle, store, event, setup.orphan_seconds / 2))
    except BaseException as error:  # raised again in the parent
        parent.report(error)
        stopped = isinstance(error, KeyboardInterrupt | Terminated) and not event.is_set()
        sys.exit(_INTERRUPTED if stopped else 0)
    finally:
        parent.end_others()


def _loaded(setup: RoleSetup, parent: Parent) -> tuple[Any, LightningStore, ThreadingEvent]:
    """Return the bundle, the store, and the event that the stop message sets; exit if they cannot be loaded."""
    try:
        bundle, store = pickle.loads(setup.bundle), pickle.loads(setup.store)
    except BaseException as error:  # importing what the bundle names runs code that may raise anything
        parent.report(error)
        sys.exit(1)
    event = ThreadingEvent()
    parent.listen(event.set)
    return bundle, store, event


async def run_until_set(algorithm: AlgorithmBundle, store: LightningStore, event: ExecutionEvent, grace: float) -> None:
    """Run the algorithm to its end; cancel it `grace` seconds after the event was set.

    The grace is for an algorithm that sets the event itself and has something left to do.

    Raises:
        Exception: whatever the algorithm raised.
        CancelledError: the event was set.
    """
    work: asyncio.Future[None] = asyncio.ensure_future(algorithm(store, event))
    stop = asyncio.ensure_future(event.wait_async())
    try:
        await asyncio.wait({work, stop}, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait({work}, timeout=grace)
    finally:
        stop.cancel()
        if not work.done():
            work.cancel()
            await asyncio.wait({work})
    await work


class RoleProcesses(Protocol):
    """The processes of a role."""

    async def run(self, event: ExecutionEvent) -> None:
        """Run them until they have ended or the event is set; none is left afterwards."""

    def kill(self) -> None:
        """End them at once, from any thread."""


def run_side_by_side(
    role: Callable[[], Coroutine[Any, Any, None]], processes: RoleProcesses, event: ExecutionEvent, patience: float
) -> None:
    """Run one role in this thread and the processes of the other from another thread; when one ends, end both.

    Args:
        role: the role of this thread.
        processes: the processes of the other role.
        event: ends the run.
        patience: seconds that ending the other role can take.

    Raises:
        Exception: what either role raised.
        KeyboardInterrupt: the run was interrupted; everything has been stopped.
    """
    thread = RoleThread("processes", lambda: processes.run(event))
    try:
        thread.start()
        asyncio.run(role())
    except asyncio.CancelledError:
        event.set()
        thread.join(patience)
        if thread.error is None:
            raise
    finally:
        event.set()
        try:
            thread.join(patience)
        except BaseException:  # interrupted again
            processes.kill()
            raise
    if thread.error is not None:
        raise thread.error
