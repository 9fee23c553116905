"""Runners: claim a rollout, run an attempt of it, report its end.

One `LitAgentRunner` may serve many asyncio tasks: `run_context` binds agent, store and hooks to the calling task.

A heartbeat belongs to the worker, not to the attempt, which is alive as long as it emits spans: `unresponsive_seconds`
of a rollout bounds the time between two spans. With each heartbeat the runner checks whether its attempt still counts,
and stops an attempt that the store has given up or whose rollout has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Generic, Literal, Protocol, TypeVar

from ..litagent import LitAgent
from ..logging import CountedCauses
from ..store import LightningStore
from ..tracer import OtelTracer, Tracer
from ..types import AttemptedRollout, Hook, NamedResources, ParallelWorkerBase, Rollout, RolloutMode
from .attempt import AttemptFailure, AttemptRun, wait_until_done
from .workers import Worker, heartbeats_of, worker_name

logger = logging.getLogger(__name__)

TaskT = TypeVar("TaskT")


class StopEvent(Protocol):
    """The event that ends a run."""

    def is_set(self) -> bool:
        """Return True if the run has to end."""

    async def wait_async(self) -> None:
        """Return once the event is set."""


class Runner(ParallelWorkerBase, Generic[TaskT]):
    """Base of runners: `iter` runs the rollouts of the store, `step` a single task, both inside a `run_context`.

    A subclass defines `init`, `init_worker`, `iter` and `step`, and the teardowns if it has something to clean up.
    """

    def init(self, agent: LitAgent[TaskT], *, hooks: Sequence[Hook] | None = None, **kwargs: Any) -> None:
        """Set the agent and the hooks of its rollouts."""
        raise NotImplementedError(f"{type(self).__name__} must define init")

    def init_worker(self, worker_id: int, store: LightningStore, **kwargs: Any) -> None:
        """Set the number of the worker and the store of the rollouts."""
        raise NotImplementedError(f"{type(self).__name__} must define init_worker")

    def run(self, *args: Any, **kwargs: Any) -> None:
        """Raise RuntimeError: a runner is used by `iter` or `step`."""
        raise RuntimeError("a runner has no run(): await iter() or step()")

    @contextmanager
    def run_context(
        self,
        *,
        agent: LitAgent[TaskT],
        store: LightningStore,
        hooks: Sequence[Hook] | None = None,
        worker_id: int | str | None = None,
    ) -> Iterator[Runner[TaskT]]:
        """Call `init` and `init_worker`, and both teardowns at the end, whose exceptions are logged."""
        worker: Any = 0 if worker_id is None else worker_id
        self.init(agent=agent, hooks=hooks)
        try:
            self.init_worker(worker_id=worker, store=store)
            try:
                yield self
            finally:
                self._quietly("teardown_worker", worker_id=worker)
        finally:
            self._quietly("teardown")

    async def iter(self, *, event: StopEvent | None = None) -> None:
        """Claim and run rollouts until the event is set."""
        raise NotImplementedError(f"{type(self).__name__} must define iter")

    async def step(
        self,
        input: TaskT,
        *,
        resources: NamedResources | None = None,
        mode: RolloutMode | None = None,
        event: StopEvent | None = None,
    ) -> Rollout:
        """Run one task without the queue, and return its rollout from the store.

        Raises:
            Exception: whatever the agent raised.
        """
        raise NotImplementedError(f"{type(self).__name__} must define step")

    def _quietly(self, method: str, **arguments: Any) -> None:
        try:
            getattr(self, method)(**arguments)
        except Exception:
            logger.exception("%s.%s failed", type(self).__name__, method)


_current_worker: ContextVar[Worker | None] = ContextVar("runner_current_worker", default=None)


class LitAgentRunner(Runner[TaskT]):
    """Runs the attempts of a task one after the other. Several tasks may share one runner.

    Args:
        tracer: makes the spans; None takes an `OtelTracer`.
        max_rollouts: number of attempts after which `iter` ends; None never ends it.
        poll_interval: seconds after which an idle runner asks the store again if the store has not woken it.
        heartbeat_interval: seconds between two heartbeats of the worker. 0 sends none; an attempt that no longer counts
            is then run to its end.
        interval_jitter, heartbeat_launch_mode: accepted without effect: the store wakes an idle runner, and heartbeats
            share the event loop, which sync agents do not block.
        heartbeat_include_gpu: add the memory of the GPUs to the heartbeat; loads torch.

    Raises:
        ValueError: a number is out of range, or `heartbeat_launch_mode` is unknown.
    """

    def __init__(
        self,
        tracer: Tracer | None = None,
        max_rollouts: int | None = None,
        poll_interval: float = 5.0,
        heartbeat_interval: float = 10.0,
        interval_jitter: float = 0.5,
        heartbeat_launch_mode: Literal["asyncio", "thread"] = "asyncio",
        heartbeat_include_gpu: bool = False,
    ) -> None:
        for name, value in (("max_rollouts", max_rollouts), ("poll_interval", poll_interval)):
            if value is not None and value <= 0:
                raise ValueError(f"{name} must be more than 0, not {value}")
        for name, value in (("heartbeat_interval", heartbeat_interval), ("interval_jitter", interval_jitter)):
            if value < 0:
                raise ValueError(f"{name} must be 0 or more, not {value}")
        if heartbeat_launch_mode not in ("asyncio", "thread"):
            raise ValueError(f"heartbeat_launch_mode must be 'asyncio' or 'thread', not {heartbeat_launch_mode!r}")
        self.tracer = OtelTracer() if tracer is None else tracer
        self._max_rollouts = max_rollouts
        self._poll_interval = poll_interval
        self._heartbeat_interval = heartbeat_interval
        self._include_gpu = heartbeat_include_gpu
        self._agent_and_hooks: tuple[LitAgent[Any], Sequence[Hook]] | None = None
        self._idle_worker: Worker | None = None
        """Worker of `init` and `init_worker`, when they are called without `run_context`."""
        self._contexts = 0
        self._failures = CountedCauses()
        """Failures of attempts since the first open context was entered."""

    def init(self, agent: LitAgent[TaskT], *, hooks: Sequence[Hook] | None = None, **kwargs: Any) -> None:
        """Set the agent and the hooks; `run_context` calls it.

        Raises:
            TypeError: one of `hooks` is no `Hook`.
        """
        for hook in hooks or ():
            if not isinstance(hook, Hook):
                raise TypeError(f"hooks must derive from Hook; {type(hook).__name__} does not")
        self._agent_and_hooks = agent, list(hooks or ())
        self.tracer.init()

    def init_worker(self, worker_id: int | str, store: LightningStore, **kwargs: Any) -> None:
        """Set the store, and the number or name of the worker; `run_context` calls it.

        Raises:
            ValueError: `init` was not called.
        """
        if self._agent_and_hooks is None:
            raise ValueError("the runner has no agent: call init(agent) first, or use run_context")
        agent, hooks = self._agent_and_hooks
        name = worker_id if isinstance(worker_id, str) else worker_name(worker_id)
        self._idle_worker = Worker(self, agent, store, hooks, name)
        agent.set_runner(self)
        self.tracer.init_worker(worker_id if isinstance(worker_id, int) else 0, store)

    def teardown_worker(self, worker_id: int | str, *args: Any, **kwargs: Any) -> None:
        """Release the store."""
        self._idle_worker = None
        self.tracer.teardown_worker(worker_id if isinstance(worker_id, int) else 0)

    def teardown(self, *args: Any, **kwargs: Any) -> None:
        """Release the agent."""
        self._agent_and_hooks = None
        self.tracer.teardown()

    @contextmanager
    def run_context(
        self,
        *,
        agent: LitAgent[TaskT],
        store: LightningStore,
        hooks: Sequence[Hook] | None = None,
        worker_id: int | str | None = None,
    ) -> Iterator[LitAgentRunner[TaskT]]:
        """Bind agent, store and hooks to the calling task; a number n as `worker_id` becomes `runner-n` (see
        `worker_name`).

        Raises:
            TypeError: one of `hooks` is no `Hook`.
        """
        previous = _current_worker.get()
        with super().run_context(agent=agent, store=store, hooks=hooks, worker_id=worker_id):
            worker, self._idle_worker = self._idle_worker, None  # the runner may serve other tasks at the same time
            if self._contexts == 0:
                self._failures = CountedCauses()
            self._contexts += 1
            _current_worker.set(worker)
            try:
                yield self
            finally:
                self._contexts -= 1
                _current_worker.set(previous)
                agent.set_runner(None if previous is None else previous.runner)
                self._idle_worker = worker

    @property
    def worker_id(self) -> str:
        """Id of the worker in the calling task."""
        return self._worker().worker_id

    def get_worker_id(self) -> str:
        """Return `worker_id`."""
        return self.worker_id

    def get_agent(self) -> LitAgent[Any]:
        """Return the agent that the calling task runs."""
        return self._worker().agent

    def get_store(self) -> LightningStore:
        """Return the store that the calling task works on."""
        return self._worker().store

    async def iter(self, *, event: StopEvent | None = None) -> None:
        """Claim and run rollouts until the event is set or `max_rollouts` have been run.

        An attempt that runs when the event is set is stopped, and its rollout goes back to the queue.
        """
        worker = self._worker()
        max_rollouts = math.inf if self._max_rollouts is None else self._max_rollouts
        stop = None if event is None else asyncio.ensure_future(event.wait_async())
        try:
            with heartbeats_of(worker, self._heartbeat_interval, include_gpu=self._include_gpu):
                while worker.attempts < max_rollouts:
                    if event is not None and stop is not None and (event.is_set() or stop.done()):
                        break
                    rollout = await worker.store.dequeue_rollout(worker_id=worker.worker_id)
                    if rollout is None:
                        await self._wait_for_work(worker.store, stop)
                    else:
                        await self._run(worker, rollout, stop)
        finally:
            if stop is not None:
                stop.cancel()

    async def step(
        self,
        input: TaskT,
        *,
        resources: NamedResources | None = None,
        mode: RolloutMode | None = None,
        event: StopEvent | None = None,
    ) -> Rollout:
        """Run one task without the queue; `resources` are added to the store first.

        Raises:
            Exception: whatever the agent or a hook raised; the store holds the failed attempt.
            TimeoutError: the agent or a hook took too long.
        """
        worker = self._worker()
        resources_id = None if resources is None else (await worker.store.add_resources(resources)).resources_id
        rollout = await worker.store.start_rollout(
            input, mode=mode, resources_id=resources_id, worker_id=worker.worker_id
        )
        stop = None if event is None else asyncio.ensure_future(event.wait_async())
        try:
            failure = await self._run(worker, rollout, stop)
        finally:
            if stop is not None:
                stop.cancel()
        if failure is not None:
            raise failure.error
        after = await worker.store.get_rollout_by_id(rollout.rollout_id)
        return rollout if after is None else after

    async def _run(
        self, worker: Worker, rollout: AttemptedRollout, stop: asyncio.Future[None] | None
    ) -> AttemptFailure | None:
        """Run an attempt; return its failure, None if it succeeded or was stopped."""
        worker.attempts += 1
        attempt = AttemptRun(rollout, worker, self.tracer, self._failures)

        def stop_attempt(_: object) -> None:
            attempt.stop("the run was stopped")

        if stop is not None:
            stop.add_done_callback(stop_attempt)
        previous, worker.current = worker.current, attempt  # a hook may run another attempt by `step`
        try:
            status = await attempt.run()
        finally:
            worker.current = previous
            if stop is not None:
                stop.remove_done_callback(stop_attempt)
        if status != "succeeded":
            worker.failed += 1
        return None if status is None else attempt.failure

    async def _wait_for_work(self, store: LightningStore, stop: asyncio.Future[None] | None) -> None:
        """Wait until there may be work, or the run is over."""
        work = asyncio.ensure_future(store.wait_for_work(self._poll_interval))
        try:
            await wait_until_done(work, stop)
        finally:
            if not work.done():
                work.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await work

    def _worker(self) -> Worker:
        worker = _current_worker.get()
        if worker is None or worker.runner is not self:
            worker = self._idle_worker
        if worker is None:
            raise ValueError("the runner is not bound: use it inside `with runner.run_context(agent=..., store=...)`")
        return worker
