"""Wake coroutines of any event loop from any thread, without polling.

A caller opens a listener, then looks, then waits: whatever happens after the opening wakes it, so nothing is missed
between the look and the wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

FOR_EVER: Final = float("inf")


@dataclass
class Changes:
    """Events of a transaction for which a caller may wait."""

    queued: bool = False
    """True if the queue got longer."""
    ended: list[str] = field(default_factory=list)
    """Ids of the rollouts that ended."""
    deadline: float | None = None
    """Seconds since the epoch: the first limit of an attempt that was started or revived."""

    def __bool__(self) -> bool:
        return self.queued or bool(self.ended) or self.deadline is not None


class Listener:
    """One waiting coroutine, bound to the event loop that opened it."""

    def __init__(self, *, work: bool, rollout_ids: Iterable[str]) -> None:
        self._loop = asyncio.get_running_loop()
        self._woken = asyncio.Event()
        self.until = FOR_EVER
        self.work = work
        self.missing = set(rollout_ids)

    def wake(self) -> None:
        """Make `wait` return; callable from any thread."""
        with contextlib.suppress(RuntimeError):  # its event loop is closed, so it does not wait any more
            self._loop.call_soon_threadsafe(self._woken.set)

    async def wait(self, until: float) -> None:
        """Return when woken, or at `until` (seconds of `time.monotonic`)."""
        self.until = until
        seconds = None if until == FOR_EVER else max(0.0, until - time.monotonic())
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._woken.wait(), seconds)
        self._woken.clear()


class Notifier:
    """All listeners of one store."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listeners: set[Listener] = set()

    @contextmanager
    def listen(self, *, work: bool = False, rollout_ids: Iterable[str] = ()) -> Iterator[Listener]:
        """Open a listener that is woken when there is work (`work`), or when all of `rollout_ids` have ended."""
        listener = Listener(work=work, rollout_ids=rollout_ids)
        with self._lock:
            self._listeners.add(listener)
        try:
            yield listener
        finally:
            with self._lock:
                self._listeners.discard(listener)

    def announce(self, changes: Changes) -> None:
        """Wake the listeners that wait for one of the changes."""
        if not self._listeners:
            return
        deadline = FOR_EVER if changes.deadline is None else monotonic_of(changes.deadline)
        with self._lock:
            for listener in self._listeners:
                if listener.missing:
                    listener.missing.difference_update(changes.ended)
                    if not listener.missing:
                        listener.wake()
                if (listener.work and changes.queued) or deadline < listener.until:
                    listener.wake()

    def wake_all(self) -> None:
        """Wake every listener."""
        with self._lock:
            for listener in self._listeners:
                listener.wake()

    def settle(self, listener: Listener, ended: Iterable[str]) -> None:
        """Note that the listener has seen these rollouts ended; wake it if they were the last ones missing."""
        with self._lock:
            listener.missing.difference_update(ended)
            if not listener.missing:
                listener.wake()

    def missing(self) -> set[str]:
        """Return the ids of the rollouts for whose end a caller waits."""
        with self._lock:
            return set().union(*(listener.missing for listener in self._listeners))

    @property
    def anybody(self) -> bool:
        """True if there is a listener."""
        return bool(self._listeners)


def monotonic_of(wall_time: float) -> float:
    """Convert seconds since the epoch to seconds of `time.monotonic`."""
    return time.monotonic() + wall_time - time.time()
