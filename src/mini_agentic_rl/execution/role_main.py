"""The code that runs in a process that a strategy has started for one role: for a runner, or for the algorithm.

The process ends when its role ends, when it is told to stop, and when the process that started it is gone.
"""

from __future__ import annotations

import asyncio
import pickle
import sys
import threading
from dataclasses import dataclass
from typing import Any

from ..logging import Throttle
from ..processes import Terminated, stops_cleanly
from ..runner import set_worker_label
from ..runner.processes import Channel, RemoteFailure
from ..store import LightningStore
from .base import AlgorithmBundle
from .events import ExecutionEvent, ThreadingEvent
from .roles import keep_running

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
