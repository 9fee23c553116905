"""One run: the bundles of the algorithm and of the runners, and the switch that ends both from outside.

The bundles are objects and not closures, so that a strategy may send them to other processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..algorithm import Algorithm, AlgorithmContext, cancel_leftovers
from ..attribution import unrecorded
from ..execution import ExecutionEvent, ExecutionStrategy
from ..litagent import LitAgent
from ..processes import in_daemon_thread
from ..runner import Runner
from ..store import LightningStore
from ..types import Dataset, Hook
from .settings import TraceExportSettings, exported

logger = logging.getLogger(__name__)

_LOOK_SECONDS = 1.0


def label(part: Algorithm | LitAgent[Any]) -> str:
    """Return the name of an algorithm or an agent: of a function that name, else the class's."""
    return str(getattr(part, "__name__", type(part).__name__))


class StopSwitch:
    """Ends a run from another thread, once a part of it runs in this process; pressed before that, as soon as it does.

    Each of the two methods writes before it reads what the other one writes, so neither can miss the other.
    """

    def __init__(self) -> None:
        self._pressed = False
        self._event: ExecutionEvent | None = None

    def connect(self, event: ExecutionEvent) -> None:
        """`event` ends the run."""
        self._event = event
        if self._pressed:
            event.set()

    def press(self) -> bool:
        """End the run; False if no part of it runs in this process yet."""
        self._pressed = True
        if self._event is not None:
            self._event.set()
        return self._event is not None


@dataclass
class AlgorithmBundle:
    """Runs the algorithm to its end, or until the event is set: then it is cancelled and may write a checkpoint."""

    algorithm: Algorithm
    context_on: Callable[[LightningStore], AlgorithmContext]
    """Make the context of the algorithm for a store, which each process reaches in its own way."""
    train_dataset: Dataset[Any] | None
    val_dataset: Dataset[Any] | None
    switch: StopSwitch

    async def __call__(self, store: LightningStore, event: ExecutionEvent) -> None:
        self.switch.connect(event)
        work = asyncio.ensure_future(self._run(store))
        stop = asyncio.ensure_future(event.wait_async())
        try:
            await asyncio.wait({work, stop}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stop.cancel()
            await _end(work)
        await work

    async def _run(self, store: LightningStore) -> None:
        context = self.context_on(store)
        if context.llm_proxy is not None:
            _record_in(store, context.llm_proxy)
        self.algorithm.bind(context)
        with unrecorded():  # calls of the algorithm itself belong to no rollout
            await self.algorithm.execute(self.train_dataset, self.val_dataset)


@dataclass
class RunnerBundle:
    """Runs the runner of one number until the event is set."""

    runner: Runner[Any]
    agent: LitAgent[Any]
    hooks: Sequence[Hook]
    switch: StopSwitch

    async def __call__(self, store: LightningStore, index: int, event: ExecutionEvent) -> None:
        self.switch.connect(event)
        with self.runner.run_context(agent=self.agent, store=store, hooks=self.hooks, worker_id=index):
            await self.runner.iter(event=event)


@dataclass
class Run:
    """Both bundles, the store between them, and the strategy that runs them."""

    strategy: ExecutionStrategy
    store: LightningStore
    algorithm_bundle: AlgorithmBundle
    runner_bundle: RunnerBundle
    runs_algorithm: bool = True
    """True if the algorithm is part of this start of the program, and not runners alone."""
    cancels_leftovers: bool = False
    """Cancel the unfinished rollouts of an earlier run in the store, before a runner can claim them."""
    closes_store: bool = False
    export: TraceExportSettings = field(default_factory=TraceExportSettings)
    """Receiver of the spans besides the store."""
    folder: Path | None = None

    def execute(self) -> None:
        """Run to the end of the algorithm. Not callable from inside a running event loop.

        Raises:
            Exception: whatever the algorithm raised.
        """
        try:
            if self.cancels_leftovers:
                left = asyncio.run(cancel_leftovers(self.store))
                if left:
                    logger.info("%d unfinished rollouts of an earlier run cancelled", left)
            if not self.runs_algorithm:
                self.strategy.execute(self.algorithm_bundle, self.runner_bundle, self.store)
                return
            agent = self.runner_bundle.agent
            with exported(self.store, self.export, agent=label(agent), run=self.folder) as store:
                self.strategy.execute(self.algorithm_bundle, self.runner_bundle, store)
        finally:
            if self.closes_store:
                asyncio.run(self.store.close())

    async def execute_async(self) -> None:
        """As `execute`, in a thread of its own. Cancelled, it stops the run, waits for its end, and is cancelled then.

        Raises:
            Exception: whatever the algorithm raised.
        """
        work = in_daemon_thread(self.execute, "trainer")
        work.add_done_callback(_look_at)
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError:
            while not work.done() and (
                self.algorithm_bundle.switch.press() or self.strategy.stop() or self.runs_algorithm
            ):
                await asyncio.wait({work}, timeout=_LOOK_SECONDS)
            raise


async def _end(work: asyncio.Future[None]) -> None:
    """Cancel `work`, and wait for its end.

    A strategy may cancel the bundle for the same event. That must not cut short the end of the algorithm, such as
    writing a checkpoint.
    """
    work.cancel()
    while not work.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait({work})


def _look_at(work: asyncio.Future[None]) -> None:
    """Retrieve the exception of a stopped run, so that asyncio does not log it."""
    if not work.cancelled():
        work.exception()


def _record_in(store: LightningStore, llm_proxy: Any) -> None:
    """A proxy of ours that has no store records in this one."""
    from ..gateway import LLMProxy

    if isinstance(llm_proxy, LLMProxy) and llm_proxy.get_store() is None:
        llm_proxy.set_store(store)
