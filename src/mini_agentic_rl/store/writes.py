"""Group commit: the writes that wait at the same moment become one transaction, and are answered after its commit.

One thread writes. While it commits, others may ask; what they ask for is the next transaction. How a transaction is
run, and what becomes of the others when one of its writes fails, is for the store to say (`database`).
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, TypeVar

from .ledger import Ledger

T = TypeVar("T")

_MOST: Final = 64


class Write:
    """One caller's operation and, later, its outcome: a result or an error."""

    def __init__(self, operation: Callable[[Ledger], Any], check_health: bool) -> None:
        self.operation = operation
        self.check_health = check_health
        self.result: Any = None
        self.error: Exception | None = None
        self.loop = asyncio.get_running_loop()
        self.answer: asyncio.Future[Any] = self.loop.create_future()

    @property
    def unwanted(self) -> bool:
        """Whether the caller was cancelled."""
        return self.answer.cancelled()

    def deliver(self) -> None:
        """Answer the caller. Runs in the caller's event loop."""
        if self.answer.done():
            return
        if self.error is None:
            self.answer.set_result(self.result)
        else:
            self.answer.set_exception(self.error)


class WriteThread:
    """The thread that writes.

    Args:
        commit: Runs writes in one transaction and fills in their outcomes; it raises nothing.
    """

    def __init__(self, commit: Callable[[Sequence[Write]], object]) -> None:
        self._commit = commit
        self._thread = ThreadPoolExecutor(1, "store-write")
        self._lock = threading.Lock()
        self._waiting: deque[Write] = deque()
        self._scheduled = False

    def submit(self, write: Write) -> None:
        """Have a write committed, and its caller answered after the commit.

        Raises:
            RuntimeError: the thread was closed.
        """
        with self._lock:
            if not self._scheduled:
                self._thread.submit(self._next)
                self._scheduled = True
            self._waiting.append(write)

    def call(self, function: Callable[[], T]) -> Future[T]:
        """Run a function in the thread, between transactions.

        Raises:
            RuntimeError: the thread was closed.
        """
        return self._thread.submit(function)

    def close(self) -> None:
        """Finish what waits, then end the thread. Blocks."""
        self._thread.shutdown()

    def _next(self) -> None:
        """Commit what waits. If more has come by then, go on with it after the calls that came in between."""
        while True:
            with self._lock:
                batch = [self._waiting.popleft() for _ in range(min(_MOST, len(self._waiting)))]
            wanted = [write for write in batch if not write.unwanted]
            if wanted:
                self._commit(wanted)
                _answer(wanted)
            with self._lock:
                self._scheduled = bool(self._waiting)
                if not self._scheduled:
                    return
                try:
                    self._thread.submit(self._next)
                    return
                except RuntimeError:  # the thread is being closed: the writes that came before are still carried out
                    continue


def _answer(writes: Sequence[Write]) -> None:
    by_loop: dict[asyncio.AbstractEventLoop, list[Write]] = {}
    for write in writes:
        by_loop.setdefault(write.loop, []).append(write)
    for loop, of_loop in by_loop.items():
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits there any more
            loop.call_soon_threadsafe(_deliver, of_loop)


def _deliver(writes: Sequence[Write]) -> None:
    for write in writes:
        write.deliver()
