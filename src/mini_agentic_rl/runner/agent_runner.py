"""The runner of agents: claim, run, report, again.

One object may serve many tasks of one event loop: what a run needs is bound to the task that opened `run_context`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from ..litagent import LitAgent
from ..logging import Throttle
from ..store.base import LightningStore
from ..tracer import OtelTracer, Tracer
from ..types import AttemptedRollout, Hook, NamedResources, Rollout, RolloutMode, TaskInput
from .attempt import AttemptRun
from .base import Runner, StopEvent

logger = logging.getLogger(__name__)


@dataclass
class _Binding:
    """What one task runs with."""

    runner: Runner
    agent: LitAgent[Any]
    store: LightningStore
    hooks: Sequence[Hook]
    worker_id: str
    attempts: int = 0
    failed: int = 0


_binding: ContextVar[_Binding | None] = ContextVar("runner_binding", default=None)


class LitAgentRunner(Runner):
    """Runs attempts one after the other; several at once by several tasks.

    Args:
        tracer: makes the spans; None takes an `OtelTracer`.
        max_rollouts: `iter` ends after this many attempts; None never does.
        poll_interval: seconds after which a runner without work looks again though nobody woke it.
        heartbeat_interval: seconds between two heartbeats of the worker in the store.

    Raises:
        ValueError: a number that is not positive.
    """

    def __init__(
        self,
        tracer: Tracer | None = None,
        max_rollouts: int | None = None,
        poll_interval: float = 5.0,
        heartbeat_interval: float = 10.0,
    ) -> None:
        for name, value in (
            ("max_rollouts", max_rollouts),
            ("poll_interval", poll_interval),
            ("heartbeat_interval", heartbeat_interval),
        ):
            if value is not None and value <= 0:
                raise ValueError(f"{name} must be more than 0, not {value}")
        self.tracer = OtelTracer() if tracer is None else tracer
        self._max_rollouts = max_rollouts
        self._poll_interval = poll_interval
        self._heartbeat_interval = heartbeat_interval
        self._told = Throttle()

    @contextmanager
    def run_context(
        self,
        *,
        agent: LitAgent[Any],
        store: LightningStore,
        hooks: Sequence[Hook] | None = None,
        worker_id: int | str | None = None,
    ) -> Iterator[LitAgentRunner]:
        """Bind agent, store and hooks to the calling task; a number n as `worker_id` becomes `runner-n`.

        Raises:
            TypeError: one of `hooks` is no `Hook`.
        """
        for hook in hooks or ():
            if not isinstance(hook, Hook):
                raise TypeError(f"hooks must derive from Hook; {type(hook).__name__} does not")
        name = worker_id if isinstance(worker_id, str) else f"runner-{worker_id or 0}"
        previous = _binding.get()
        _binding.set(_Binding(self, agent, store, list(hooks or ()), name))
        agent.set_runner(self)
        try:
            yield self
        finally:
            _binding.set(previous)
            agent.set_runner(None if previous is None else previous.runner)

    @property
    def worker_id(self) -> str:
        """The worker's id in the calling task."""
        return self._bound().worker_id

    async def iter(self, *, event: StopEvent | None = None) -> None:
        """Claim and run rollouts until the event is set or `max_rollouts` have been run.

        When the event is set while an attempt is under way, the attempt is broken off and its rollout goes back to the
        queue.
        """
        bound = self._bound()
        stop = None if event is None else asyncio.ensure_future(event.wait_async())
        heart = asyncio.ensure_future(self._beat(bound))
        try:
            while not _is_over(event, stop) and (self._max_rollouts is None or bound.attempts < self._max_rollouts):
                rollout = await bound.store.dequeue_rollout(worker_id=bound.worker_id)
                if rollout is None:
                    await self._wait_for_work(bound.store, stop)
                else:
                    await self._run(bound, rollout, stop)
        finally:
            for task in (heart, stop):
                if task is not None:
                    task.cancel()

    async def step(
        self,
        input: TaskInput,
        *,
        resources: NamedResources | None = None,
        mode: RolloutMode | None = None,
        event: StopEvent | None = None,
    ) -> Rollout:
        """Run one task at once, past the queue; `resources` are added to the store first if given."""
        bound = self._bound()
        resources_id = None if resources is None else (await bound.store.add_resources(resources)).resources_id
        rollout = await bound.store.start_rollout(
            input, mode=mode, resources_id=resources_id, worker_id=bound.worker_id
        )
        stop = None if event is None else asyncio.ensure_future(event.wait_async())
        try:
            await self._run(bound, rollout, stop)
        finally:
            if stop is not None:
                stop.cancel()
        after = await bound.store.get_rollout_by_id(rollout.rollout_id)
        return rollout if after is None else after

    async def _run(self, bound: _Binding, rollout: AttemptedRollout, stop: asyncio.Future[None] | None) -> None:
        bound.attempts += 1
        attempt = AttemptRun(
            rollout,
            agent=bound.agent,
            runner=self,
            tracer=self.tracer,
            store=bound.store,
            hooks=bound.hooks,
            stop=stop,
        )
        if await attempt.run() != "succeeded":
            bound.failed += 1

    async def _wait_for_work(self, store: LightningStore, stop: asyncio.Future[None] | None) -> None:
        work = asyncio.ensure_future(store.wait_for_work(self._poll_interval))
        waiting: set[asyncio.Future[Any]] = {work} if stop is None else {work, stop}
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not work.done():
                work.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await work
        if not work.cancelled():
            work.result()

    async def _beat(self, bound: _Binding) -> None:
        while True:
            stats = {"attempts": bound.attempts, "failed": bound.failed, "pid": os.getpid()}
            try:
                await bound.store.update_worker(bound.worker_id, heartbeat_stats=stats)
            except Exception as error:  # one missed heartbeat is no reason to end the runner
                if self._told.due(repr(error)):
                    logger.warning("heartbeat of %s failed: %s", bound.worker_id, error)
            await asyncio.sleep(self._heartbeat_interval)

    def _bound(self) -> _Binding:
        bound = _binding.get()
        if bound is None or bound.runner is not self:
            raise RuntimeError("the runner is not bound: use it inside `with runner.run_context(agent=..., store=...)`")
        return bound


def _is_over(event: StopEvent | None, stop: asyncio.Future[None] | None) -> bool:
    return (event is not None and event.is_set()) or (stop is not None and stop.done())
