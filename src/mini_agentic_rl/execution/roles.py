"""The roles of a run, algorithm and runner: tasks and threads of this process, or the main code of a child process.

A child process ends when its role ends, when it gets a stop message, or when its parent is gone.
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
from typing import Any, Protocol

from ..errors import UserError
from ..logging import Throttle
from ..processes import Channel, RemoteFailure, Terminated, stops_cleanly
from ..runner import set_worker_label
from ..store import LightningStore
from .base import AlgorithmBundle, ExecutionEvent, RunnerBundle, ThreadingEvent

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


_INTERRUPTED = 130


@dataclass(frozen=True)
class RoleSetup:
    """The role of a process, pickled."""

    bundle: bytes
    """Pickle of the bundle to run."""
    store: bytes
    """Pickle of the store, as it is seen from another process."""
    orphan_seconds: float
    """Seconds that it may take to end once the process that started it is gone."""
    index: int = 0
    worker_label: str | None = None


def run_runner(channel: Channel) -> None:
    """Be the process of one runner."""
    setup, bundle, store, event = _begin(channel)
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
        channel.end_others()


def run_algorithm(channel: Channel) -> None:
    """Be the process of the algorithm."""
    setup, bundle, store, event = _begin(channel)
    try:
        with stops_cleanly():
            asyncio.run(run_until_set(bundle, store, event, setup.orphan_seconds / 2))
    except BaseException as error:  # told to the process that waits for it
        channel.send(("failed", RemoteFailure.of(error)))
        stopped = isinstance(error, KeyboardInterrupt | Terminated) and not event.is_set()
        sys.exit(_INTERRUPTED if stopped else 0)
    finally:
        channel.end_others()


async def run_until_set(algorithm: AlgorithmBundle, store: LightningStore, event: ExecutionEvent, grace: float) -> None:
    """Run the algorithm to its end; cancel it `grace` seconds after the event was set.

    An algorithm that sets the event itself may have something left to do.

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


def _begin(channel: Channel) -> tuple[RoleSetup, Any, LightningStore, ThreadingEvent]:
    setup: RoleSetup = channel.receive()
    try:
        bundle, store = pickle.loads(setup.bundle), pickle.loads(setup.store)
    except BaseException as error:  # importing what the bundle names runs code that may raise anything
        channel.send(("refused", RemoteFailure.of(error)))
        sys.exit(1)
    event = ThreadingEvent()
    threading.Thread(target=_listen, args=(channel, event, setup.orphan_seconds), name="listener", daemon=True).start()
    return setup, bundle, store, event


def _listen(channel: Channel, event: ThreadingEvent, orphan_seconds: float) -> None:
    try:
        while True:
            channel.receive()  # the only message is that it is to stop
            event.set()
    except EOFError:
        event.set()
        channel.end_all(orphan_seconds)


class OtherRole(Protocol):
    """The processes of a role, as their starter sees them."""

    async def run(self, event: ExecutionEvent) -> None:
        """Keep them until they have ended or the event is set; none is left afterwards."""

    def kill(self) -> None:
        """End them at once, from any thread."""


def run_side_by_side(
    mine: Callable[[], Coroutine[Any, Any, None]], other: OtherRole, event: ExecutionEvent, patience: float
) -> None:
    """Run `mine` here and the other role from another thread, and end both however either ends.

    Args:
        patience: seconds that ending the other role can take.

    Raises:
        Exception: what either role raised.
        KeyboardInterrupt: the run was interrupted; everything has been stopped.
    """
    thread = RoleThread("processes", lambda: other.run(event))
    try:
        thread.start()
        asyncio.run(mine())
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
            other.kill()
            raise
    if thread.error is not None:
        raise thread.error
