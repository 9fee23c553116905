"""The interface of every runner."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from ..litagent import LitAgent
from ..store import LightningStore
from ..types import Hook, NamedResources, Rollout, RolloutMode, TaskInput


class StopEvent(Protocol):
    """The event that ends a run, as a runner needs it."""

    def is_set(self) -> bool:
        """Return True if the run is to end."""
        ...

    async def wait_async(self) -> None:
        """Return once the event is set."""
        ...


class Runner(ABC):
    """A runner of rollouts: of all that come (`iter`), or of one that is given (`step`), inside a `run_context`."""

    @abstractmethod
    def run_context(
        self,
        *,
        agent: LitAgent[Any],
        store: LightningStore,
        hooks: Sequence[Hook] | None = None,
        worker_id: int | str | None = None,
    ) -> AbstractContextManager[Runner]:
        """Bind the runner to an agent and a store, for the calling task."""

    @abstractmethod
    async def iter(self, *, event: StopEvent | None = None) -> None:
        """Claim and run rollouts until the event is set."""

    @abstractmethod
    async def step(
        self,
        input: TaskInput,
        *,
        resources: NamedResources | None = None,
        mode: RolloutMode | None = None,
        event: StopEvent | None = None,
    ) -> Rollout:
        """Run one task at once, past the queue, and return its rollout as the store has it afterwards."""
