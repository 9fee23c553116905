"""What an algorithm is: something that enqueues rollouts, reads what they left, and changes what the agent uses.

It never runs an agent and never speaks HTTP: the store is its only way to its runners.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from ..metrics import MetricsLogger
from ..store.base import LightningStore
from ..types import Dataset, NamedResources


class Checkpoints(Protocol):
    """Where a run keeps what it needs to go on."""

    def save_checkpoint(self, step: int, write: Callable[[Path], None]) -> Path | None:
        """Keep what `write` puts into an empty folder; None when the disk is full."""
        ...

    def latest_checkpoint(self) -> tuple[int, Path] | None:
        """(step, folder) of the newest whole checkpoint."""
        ...

    def save_adapter(self, write: Callable[[Path], None]) -> Path:
        """Keep the trained weights."""
        ...


@dataclass
class AlgorithmContext:
    """What the trainer gives an algorithm to work with."""

    store: LightningStore
    logger: MetricsLogger = field(default_factory=MetricsLogger)
    checkpoints: Checkpoints | None = None
    resume: bool = False
    """Go on from the latest checkpoint, if there is one."""
    initial_resources: NamedResources = field(default_factory=dict)
    n_runners: int = 1
    """How many rollouts can run at once."""


class Algorithm(ABC):
    """Subclasses define `run`, sync or async, with the parameters `train_dataset` and `val_dataset`."""

    def __init__(self) -> None:
        self._context: AlgorithmContext | None = None

    @property
    def context(self) -> AlgorithmContext:
        """What the trainer gave.

        Raises:
            RuntimeError: the algorithm is not run by a trainer.
        """
        if self._context is None:
            raise RuntimeError(f"{type(self).__name__} has no store yet: run it with Trainer(algorithm=…).fit(…)")
        return self._context

    def bind(self, context: AlgorithmContext) -> None:
        """Called by the trainer before `run`."""
        self._context = context

    def get_store(self) -> LightningStore:
        """The store that runners watch."""
        return self.context.store

    def get_initial_resources(self) -> NamedResources:
        """The resources that the trainer was given."""
        return self.context.initial_resources

    def is_async(self) -> bool:
        """Whether `run` is a coroutine function."""
        return inspect.iscoroutinefunction(self.run)

    @abstractmethod
    def run(self, train_dataset: Dataset[Any] | None = None, val_dataset: Dataset[Any] | None = None) -> Any:
        """Do it all; returning ends the run."""

    @property
    def summary(self) -> Mapping[str, Any]:
        """Results worth keeping after the run: `accuracy`, `seconds`, `untrained` ..."""
        return {}
