"""The interface of every runner."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Generic, Protocol, TypeVar

from ..litagent import LitAgent
from ..store import LightningStore
from ..types import Hook, NamedResources, ParallelWorkerBase, Rollout, RolloutMode

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
