"""The one thread on which torch computes.

OpenMP keeps a pool of threads for every thread that computes, and with more pools than cores none of them runs at full
speed: sampling on one thread and learning on another costs both about 40 %. So loading, sampling and learning share
this thread and take turns: jobs first, then a step of the engine. Brief jobs come before the others, and a long job may
run them between two parts of its work (`run_brief`).
"""

from __future__ import annotations

import atexit
import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar

from ..errors import fit_for_future
from .errors import PolicyError

T = TypeVar("T")

logger = logging.getLogger(__name__)


class Steps(Protocol):
    """The part of `Engine` that this thread calls; `engine.py` imports this module."""

    def pending(self) -> bool:
        """Return True if there is a step to compute."""

    def step(self) -> None:
        """Compute one step."""

    def abandon(self) -> None:
        """Cancel all requests; no step follows."""


class TorchThread:
    """A thread that runs jobs in order, brief ones first, and steps of an engine while no job waits."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._jobs: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._brief: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._engine: Steps | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="torch", daemon=True)
        self._thread.start()
        # A daemon thread that computes while the interpreter goes away ends the process with an abort.
        atexit.register(self.close)

    def attend(self, engine: Steps) -> None:
        """Run the steps of this engine while no job waits. An engine whose step raises is abandoned."""
        with self._condition:
            self._engine = engine
            self._condition.notify()

    def submit(self, job: Callable[[], T], *, brief: bool = False) -> Future[T]:
        """Run `job` on this thread after the step under way.

        Args:
            brief: before the jobs that are not, and between two parts of one that lets brief ones in.

        Raises:
            PolicyError: the thread is closed.
        """
        future: Future[T] = Future()
        with self._condition:
            if self._closed:
                raise PolicyError("the policy is closed")
            (self._brief if brief else self._jobs).append((job, future))
            self._condition.notify()
        return future

    def has_brief(self) -> bool:
        """Return True if a brief job waits."""
        return bool(self._brief)

    def run_brief(self) -> None:
        """Run the brief jobs that wait; a long job calls it on this thread between two parts of its work."""
        while self._brief:
            _fulfil(*self._brief.popleft())

    def call(self, job: Callable[[], T]) -> T:
        """Run `job` on this thread and wait for its result; raises what it raises."""
        # A job that calls another would wait for itself.
        if threading.current_thread() is self._thread:
            return job()
        return self.submit(job).result()

    def wake(self) -> None:
        """Let the thread see that the engine has a request."""
        with self._condition:
            self._condition.notify()

    def close(self) -> None:
        """Finish the jobs that wait, abandon the engine's requests, end."""
        with self._condition:
            self._closed = True
            self._condition.notify()
        self._thread.join()
        atexit.unregister(self.close)

    def _run(self) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(
                    lambda: self._brief or self._jobs or self._closed or (self._engine and self._engine.pending())
                )
                waiting = self._brief or self._jobs
                job = waiting.popleft() if waiting else None
                closing = self._closed and job is None
            # Outside the lock, so that anyone can submit while torch computes.
            if job is not None:
                _fulfil(*job)
            elif closing:
                break
            elif self._engine is not None:
                try:
                    self._engine.step()
                except BaseException:  # the jobs of others wait for this thread
                    logger.exception("a step of the engine failed; its requests are cancelled")
                    self._abandon()
        self._abandon()

    def _abandon(self) -> None:
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.abandon()


def _fulfil(job: Callable[[], T], future: Future[T]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(job())
    except BaseException as error:  # raised where the result is awaited
        future.set_exception(fit_for_future(error, "a job of the torch thread"))
