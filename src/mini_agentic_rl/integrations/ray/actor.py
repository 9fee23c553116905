"""One runner in a process that Ray has started on some node. Nothing here knows Ray: it calls these methods.

A runner is ended in one of three ways: it is told to `retire` and ends between two rollouts; it is told to `stop`, and
the rollout that it has goes back to the queue; or its process is killed, and what it had started is ended all the same.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from ...execution.base import RunnerBundle, ThreadingEvent
from ...execution.roles import keep_running
from ...logging import Throttle, setup_logging
from ...runner import set_worker_label
from ...runner.processes import RemoteFailure, begin_family, end_family
from ...store import LightningStore
from .gate import ClaimGate


@dataclass(frozen=True)
class RunnerSetup:
    """The role of a runner on another node."""

    bundle: bytes
    """Pickle of the bundle to run."""
    store: bytes
    """Pickle of the store, as it is seen from another node."""
    paths: Sequence[str]
    """Folders in which the starting process finds modules."""
    log_level: int | None
    """Level of what the runner logs; None leaves it to the process."""
    run_label: str | None = None
    """Tells the workers of this run from those of others on the same store."""


@dataclass(frozen=True)
class Place:
    """The place where a runner runs."""

    host: str
    pid: int


class RunnerActor:
    """A runner, whose methods are called from several threads: one runs it, others end it."""

    def __init__(self, setup: RunnerSetup, index: int, worker_label: str | None) -> None:
        self._setup = setup
        self._index = index
        self._worker_label = worker_label
        self._event = ThreadingEvent()
        self._mark = begin_family()
        self._bundle: RunnerBundle | None = None
        self._gate: ClaimGate | None = None

    def load(self) -> Place | RemoteFailure:
        """Load the bundle and the store, and tell where this is; or what kept them from being loaded."""
        sys.path.extend(path for path in self._setup.paths if path not in sys.path)
        if self._setup.log_level is not None:
            setup_logging(self._setup.log_level)
        try:
            store: LightningStore = pickle.loads(self._setup.store)
            self._gate = ClaimGate(store, self._event)
            self._bundle = pickle.loads(self._setup.bundle)
        except BaseException as error:  # importing what the bundle names runs code that may raise anything
            return RemoteFailure.of(error)
        return Place(socket.gethostname(), os.getpid())

    def run(self) -> None:
        """Run until the runner is ended or ends by itself; it is started again where it crashes."""
        bundle, gate = self._bundle, self._gate
        if bundle is None or gate is None:
            raise RuntimeError("the runner was not loaded")
        set_worker_label(self._worker_label)

        async def work() -> None:
            try:
                await keep_running(bundle, gate, self._index, self._event, Throttle())
            finally:
                await gate.close()

        try:
            asyncio.run(work())
        finally:
            self.end_others()

    def retire(self) -> None:
        """Claim no more rollouts, and end after the one under way."""
        if self._gate is not None:
            self._gate.shut()

    def stop(self) -> None:
        """End now; the rollout under way goes back to the queue."""
        self._event.set()

    def end_others(self) -> None:
        """Kill everything that this process has started."""
        end_family(os.getpid(), self._mark, grace=0)
