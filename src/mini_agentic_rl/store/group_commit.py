"""Group commit: the writes that wait at the same moment become one transaction, and are answered after its commit.

One thread writes. The writes that arrive while it commits become the next transaction. The store (`database`) defines
how a transaction is run, and what happens to its other writes when one of them fails.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, Final, TypeVar

from ..errors import fit_for_future
from .errors import LightningStoreError
from .ledger import Ledger

T = TypeVar("T")

logger = logging.getLogger(__name__)

_MOST: Final = 64


class Write:
    """Operation of one caller and, later, its outcome: a result or an error."""

    def __init__(self, operation: Callable[[Ledger], Any], check_health: bool, rows: int) -> None:
        self.operation = operation
        self.check_health = check_health
        self.short = rows <= 1
        """True if it goes before those that write more: they are parts of long calls, which others would wait for."""
        self.result: Any = None
        self.error: BaseException | None = None
        self.committed = False
        self.loop = asyncio.get_running_loop()
        self.answer: asyncio.Future[Any] = self.loop.create_future()
        self.commit: Callable[[Sequence[Write]], object]
        """Commits the write together with others; set by the thread that the write is given to."""

    @property
    def unwanted(self) -> bool:
        """True if the caller was cancelled."""
        return self.answer.cancelled()

    def deliver(self) -> None:
        """Answer the caller. Runs in the caller's event loop."""
        if self.answer.done():
            return
        if self.error is None:
            self.answer.set_result(self.result)
        else:
            self.answer.set_exception(fit_for_future(self.error, "an operation of the store"))


class _FunctionCall:
    """Function for the thread to run, and the future of its outcome."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function
        self.outcome: Future[Any] = Future()

    def run(self) -> None:
        if not self.outcome.set_running_or_notify_cancel():
            return
        try:
            self.outcome.set_result(self._function())
        except BaseException as error:  # whoever waits for the outcome gets it
            self.outcome.set_exception(error)


_END: Final = _FunctionCall(lambda: None)
"""Marks the end of the queue."""


class _Jobs:
    """The queue: short jobs first, each kind in the order in which it came."""

    def __init__(self) -> None:
        self._coming: SimpleQueue[None] = SimpleQueue()
        self._short: deque[Write | _FunctionCall] = deque()
        self._long: deque[Write | _FunctionCall] = deque()

    def put(self, job: Write | _FunctionCall, *, short: bool) -> None:
        """Add a job."""
        (self._short if short else self._long).append(job)
        self._coming.put(None)

    def get(self, *, short: bool = True) -> Write | _FunctionCall:
        """Wait for a job, and return it: a short one, or else a long one, unless long ones are to come first."""
        self._coming.get()
        first, second = (self._short, self._long) if short else (self._long, self._short)
        return (first or second).popleft()

    def empty(self) -> bool:
        """Return True if no job waits."""
        return self._coming.empty()


class WriteThread:
    """Thread that writes. It ends when this object is closed or garbage-collected.

    Args:
        commit: Runs writes in one transaction and fills in their outcomes.
    """

    def __init__(self, commit: Callable[[Sequence[Write]], object]) -> None:
        self._commit = commit
        self._lock = threading.Lock()
        self._closed = False
        self._jobs = _Jobs()
        self._thread = threading.Thread(target=_serve, args=(self._jobs,), name="store-write", daemon=True)
        self._thread.start()
        weakref.finalize(self, self._jobs.put, _END, short=False)

    def submit(self, write: Write) -> None:
        """Queue a write to be committed; its caller is answered after the commit.

        Raises:
            RuntimeError: the thread was closed.
        """
        write.commit = self._commit
        self._put(write, short=write.short)

    def call(self, function: Callable[[], T]) -> Future[T]:
        """Run a function in the thread, between transactions, after the writes that came before.

        Raises:
            RuntimeError: the thread was closed.
        """
        call = _FunctionCall(function)
        self._put(call, short=True)
        return call.outcome

    def close(self) -> None:
        """Finish what waits, then end the thread. Blocks."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._jobs.put(_END, short=False)
        self._thread.join()

    def _put(self, job: Write | _FunctionCall, *, short: bool) -> None:
        with self._lock:
            if self._closed:
                raise RuntimeError("the writing thread was closed")
            self._jobs.put(job, short=short)


def _serve(jobs: _Jobs) -> None:
    """Serve the queue until its end.

    Between two jobs the thread refers to nothing but the queue, so it keeps no store alive.
    """
    while _serve_once(jobs):
        pass


def _serve_once(jobs: _Jobs) -> bool:
    writes, call = _waiting(jobs)
    wanted = [write for write in writes if not write.unwanted]
    if wanted:
        try:
            wanted[0].commit(wanted)
        except BaseException as error:  # these writes fail; the thread, which others wait for as well, goes on
            logger.exception("%d writes of the store failed", len(wanted))
            for write in wanted:
                if write.error is None and not write.committed:
                    write.error = LightningStoreError(f"the store could not write: {error!r}")
                    write.error.__cause__ = error
        _answer(wanted)
    if call is not None and call is not _END:
        call.run()
    return call is not _END


def _waiting(jobs: _Jobs) -> tuple[list[Write], _FunctionCall | None]:
    """Take the short writes that wait now, up to `_MOST`, and one long one; and what came after them if that is
    something else."""
    writes: list[Write] = []
    while True:
        job = jobs.get(short=len(writes) < _MOST)
        if not isinstance(job, Write):
            if job is _END and not jobs.empty():  # short ones still wait, which go first
                jobs.put(job, short=False)
                return writes, None
            return writes, job
        writes.append(job)
        if not job.short or len(writes) > _MOST or jobs.empty():
            return writes, None


def _answer(writes: Sequence[Write]) -> None:
    by_loop: dict[asyncio.AbstractEventLoop, list[Write]] = {}
    for write in writes:
        by_loop.setdefault(write.loop, []).append(write)
    for loop, of_loop in by_loop.items():
        with contextlib.suppress(RuntimeError):  # the loop is closed, so its callers do not wait any more
            loop.call_soon_threadsafe(_deliver, of_loop)


def _deliver(writes: Sequence[Write]) -> None:
    for write in writes:
        write.deliver()
