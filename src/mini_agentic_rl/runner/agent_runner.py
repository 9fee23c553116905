"""The interface of runners, and the runner of agents: claim a rollout, run an attempt of it, report its end.

One `LitAgentRunner` may serve many asyncio tasks: `run_context` binds agent, store and hooks to the calling task.

A heartbeat belongs to the worker. An attempt shows that it is alive by its spans only: `unresponsive_seconds` of a
rollout bounds how long its agent may emit none. With each heartbeat the runner checks whether its attempt still counts,
and stops an attempt that the store has given up or whose rollout has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Generic, Literal, Protocol, TypeAlias, TypeVar

from ..litagent import LitAgent
from ..logging import CountedCauses
from ..store import LightningStore
from ..tracer import OtelTracer, Tracer
from ..types import AttemptedRollout, Hook, NamedResources, ParallelWorkerBase, Rollout, RolloutMode
from .attempt import AttemptFailure, AttemptRun
from .heartbeats import Binding, RunningAttempt, heartbeats_of
from .isolation import AgentProcess
from .workers import worker_name

logger = logging.getLogger(__name__)

TaskT = TypeVar("TaskT")


class StopEvent(Protocol):
    """The event that ends a run, as a runner needs it."""

    def is_set(self) -> bool:
        """Return True if the run is to end."""

    async def wait_async(self) -> None:
        """Return once the event is set."""


class Runner(ParallelWorkerBase, Generic[TaskT]):
    """A runner of rollouts: of all that come (`iter`), or of one that is given (`step`), inside a `run_context`.

    A subclass defines `init`, `init_worker`, `iter` and `step`, and the teardowns where there is something to clean up.
    """

    def init(self, agent: LitAgent[TaskT], *, hooks: Sequence[Hook] | None = None, **kwargs: Any) -> None:
        """Take the agent that is run, and the hooks around its rollouts."""
        raise NotImplementedError(f"{type(self).__name__} must define init")

    def init_worker(self, worker_id: int, store: LightningStore, **kwargs: Any) -> None:
        """Take the number of the worker, and the store that rollouts come from."""
        raise NotImplementedError(f"{type(self).__name__} must define init_worker")

    def run(self, *args: Any, **kwargs: Any) -> None:
        """Refuse: what runs is `iter` or `step`.

        Raises:
            RuntimeError: always.
        """
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
        """Take the runner through its life: `init` and `init_worker`, and at the end both teardowns.

        What a teardown raises is logged.
        """
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
        """Run one task at once, past the queue, and return its rollout as the store has it afterwards.

        Raises:
            Exception: what the agent raised.
        """
        raise NotImplementedError(f"{type(self).__name__} must define step")

    def _quietly(self, method: str, **arguments: Any) -> None:
        try:
            getattr(self, method)(**arguments)
        except Exception:  # what ran before is not lost for it
            logger.exception("%s.%s failed", type(self).__name__, method)


Isolation: TypeAlias = Literal["thread", "process"]
"""Place where a runner calls its agent: in this process, or in one of its own."""


_binding: ContextVar[Binding | None] = ContextVar("runner_binding", default=None)


class LitAgentRunner(Runner[TaskT]):
    """Runs attempts one after the other; several at once by several tasks.

    Args:
        tracer: makes the spans; None takes an `OtelTracer`.
        max_rollouts: `iter` ends after this many attempts; None never does.
        poll_interval: seconds after which a runner without work looks again though nobody woke it.
        heartbeat_interval: seconds between two heartbeats of the worker in the store. 0 sends none; then nobody sees
            that an attempt no longer counts, and it is run to its end.
        interval_jitter, heartbeat_launch_mode: taken, and of no effect: a runner without work is woken by the store,
            and its heartbeat shares the event loop, which sync agents do not block.
        heartbeat_include_gpu: whether a heartbeat tells of the GPUs; loads torch.
        isolation: `thread` calls the agent in this process: async on the event loop, sync in a thread; a sync agent
            that hangs is given up and goes on in the background. `process` calls it in a process of its own, one per
            runner, which is killed with everything that it has started when the time of an attempt is up, and whose
            crash ends no more than its attempt. There the agent is a copy: what it changes of itself is not seen here.
            The agent, its tasks and its resources must be picklable; hooks run here.

    Raises:
        ValueError: a number that is not positive, or an unknown `isolation` or `heartbeat_launch_mode`.
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
        *,
        isolation: Isolation = "thread",
    ) -> None:
        for name, value in (
            ("max_rollouts", max_rollouts),
            ("poll_interval", poll_interval),
        ):
            if value is not None and value <= 0:
                raise ValueError(f"{name} must be more than 0, not {value}")
        for name, value in (("heartbeat_interval", heartbeat_interval), ("interval_jitter", interval_jitter)):
            if value < 0:
                raise ValueError(f"{name} must be 0 or more, not {value}")
        if heartbeat_launch_mode not in ("asyncio", "thread"):
            raise ValueError(f"heartbeat_launch_mode must be 'asyncio' or 'thread', not {heartbeat_launch_mode!r}")
        if isolation not in ("thread", "process"):
            raise ValueError(f"isolation must be 'thread' or 'process', not {isolation!r}")
        self.isolation = isolation
        self.tracer = OtelTracer() if tracer is None else tracer
        self._max_rollouts = max_rollouts
        self._poll_interval = poll_interval
        self._heartbeat_interval = heartbeat_interval
        self._include_gpu = heartbeat_include_gpu
        self._given: tuple[LitAgent[Any], Sequence[Hook]] | None = None
        self._by_hand: Binding | None = None
        self._contexts = 0
        self._failures = CountedCauses()
        """Failures of attempts since the first of the contexts that are open was entered."""

    def init(self, agent: LitAgent[TaskT], *, hooks: Sequence[Hook] | None = None, **kwargs: Any) -> None:
        """Take the agent and the hooks; `run_context` does this and what belongs to it.

        Raises:
            TypeError: one of `hooks` is no `Hook`.
        """
        for hook in hooks or ():
            if not isinstance(hook, Hook):
                raise TypeError(f"hooks must derive from Hook; {type(hook).__name__} does not")
        self._given = agent, list(hooks or ())
        self.tracer.init()

    def init_worker(self, worker_id: int | str, store: LightningStore, **kwargs: Any) -> None:
        """Take the store, and the worker's number or name.

        Raises:
            ValueError: `init` was not called.
        """
        if self._given is None:
            raise ValueError("the runner has no agent: call init(agent) first, or use run_context")
        agent, hooks = self._given
        name = worker_id if isinstance(worker_id, str) else worker_name(worker_id)
        process = AgentProcess(agent, self.tracer, store, name) if self.isolation == "process" else None
        self._by_hand = Binding(self, agent, store, hooks, name, process)
        agent.set_runner(self)
        self.tracer.init_worker(worker_id if isinstance(worker_id, int) else 0, store)

    def teardown_worker(self, worker_id: int | str, *args: Any, **kwargs: Any) -> None:
        """Let go of the store, and end the agent's process where it has one."""
        bound, self._by_hand = self._by_hand, None
        if bound is not None and bound.process is not None:
            bound.process.close_at_once()
        self.tracer.teardown_worker(worker_id if isinstance(worker_id, int) else 0)

    def teardown(self, *args: Any, **kwargs: Any) -> None:
        """Let go of the agent."""
        self._given = None
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
        previous = _binding.get()
        with super().run_context(agent=agent, store=store, hooks=hooks, worker_id=worker_id):
            bound, self._by_hand = self._by_hand, None  # the runner may serve other tasks at the same time
            if self._contexts == 0:
                self._failures = CountedCauses()
            self._contexts += 1
            _binding.set(bound)
            try:
                yield self
            finally:
                self._contexts -= 1
                _binding.set(previous)
                agent.set_runner(None if previous is None else previous.runner)
                self._by_hand = bound

    @property
    def worker_id(self) -> str:
        """Id of the worker in the calling task."""
        return self._bound().worker_id

    def get_worker_id(self) -> str:
        """Return `worker_id`."""
        return self.worker_id

    def get_agent(self) -> LitAgent[Any]:
        """Return the agent that the calling task runs."""
        return self._bound().agent

    def get_store(self) -> LightningStore:
        """Return the store that the calling task works on."""
        return self._bound().store

    async def iter(self, *, event: StopEvent | None = None) -> None:
        """Claim and run rollouts until the event is set or `max_rollouts` have been run.

        When the event is set while an attempt is under way, the attempt is broken off and its rollout goes back to the
        queue.
        """
        bound = self._bound()
        stop = None if event is None else asyncio.ensure_future(event.wait_async())
        try:
            with heartbeats_of(bound, self._heartbeat_interval, include_gpu=self._include_gpu):
                while not _is_over(event, stop) and (self._max_rollouts is None or bound.attempts < self._max_rollouts):
                    if bound.process is not None and not bound.process.running:
                        if not await self._wait_for_work(bound.store, stop):
                            continue
                        await bound.process.prepare(stop)
                    rollout = await bound.store.dequeue_rollout(worker_id=bound.worker_id)
                    if rollout is None:
                        await self._wait_for_work(bound.store, stop)
                    else:
                        await self._run(bound, rollout, stop)
        finally:
            if stop is not None:
                stop.cancel()
            if bound.process is not None:
                await bound.process.close()

    async def step(
        self,
        input: TaskT,
        *,
        resources: NamedResources | None = None,
        mode: RolloutMode | None = None,
        event: StopEvent | None = None,
    ) -> Rollout:
        """Run one task at once, past the queue; `resources` are added to the store first if given.

        Raises:
            Exception: what the agent or a hook raised, once the store knows of it.
            TimeoutError: the agent or a hook took too long.
        """
        bound = self._bound()
        if bound.process is not None:
            await bound.process.prepare(None)
        resources_id = None if resources is None else (await bound.store.add_resources(resources)).resources_id
        rollout = await bound.store.start_rollout(
            input, mode=mode, resources_id=resources_id, worker_id=bound.worker_id
        )
        stop = None if event is None else asyncio.ensure_future(event.wait_async())
        try:
            failure = await self._run(bound, rollout, stop)
        finally:
            if stop is not None:
                stop.cancel()
        if failure is not None:
            raise failure.error
        after = await bound.store.get_rollout_by_id(rollout.rollout_id)
        return rollout if after is None else after

    async def _run(
        self, bound: Binding, rollout: AttemptedRollout, stop: asyncio.Future[None] | None
    ) -> AttemptFailure | None:
        """Run an attempt; return why it failed, None where it did not or was stopped.

        Nothing that the agent raises ends the runner.
        """
        bound.attempts += 1
        halt: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        def break_off(_: object) -> None:
            if not halt.done():
                halt.set_result("the run was stopped")

        if stop is not None:
            stop.add_done_callback(break_off)
        attempt = AttemptRun(
            rollout,
            agent=bound.agent,
            runner=self,
            tracer=self.tracer,
            store=bound.store,
            hooks=bound.hooks,
            stop=halt,
            process=bound.process,
            failures=self._failures,
        )
        try:
            with bound.running(RunningAttempt(rollout, attempt, halt)):
                status = await attempt.run()
            if status != "succeeded":
                bound.failed += 1
            return None if status is None else attempt.failure
        finally:
            if stop is not None:
                stop.remove_done_callback(break_off)

    async def _wait_for_work(self, store: LightningStore, stop: asyncio.Future[None] | None) -> bool:
        """Wait until there may be work; return False if there is none, or the run is over."""
        work = asyncio.ensure_future(store.wait_for_work(self._poll_interval))
        waiting: set[asyncio.Future[Any]] = {work} if stop is None else {work, stop}
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not work.done():
                work.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await work
        return not work.cancelled() and work.result()

    def _bound(self) -> Binding:
        bound = _binding.get()
        if bound is None or bound.runner is not self:
            bound = self._by_hand
        if bound is None:
            raise ValueError("the runner is not bound: use it inside `with runner.run_context(agent=..., store=...)`")
        return bound


def _is_over(event: StopEvent | None, stop: asyncio.Future[None] | None) -> bool:
    return (event is not None and event.is_set()) or (stop is not None and stop.done())
