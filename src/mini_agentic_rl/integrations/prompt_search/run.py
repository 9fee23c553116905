"""One run of a search for a prompt: begin or go on, a step at a time, to the end.

Every draw of a search follows from the seed and the step, and the state is written whole after each: a search that was
killed begins the unfinished step again and, with a model that answers alike, ends as an unbroken one.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ...adapter import TraceToMessages
from ...algorithm.base import AlgorithmContext
from ...errors import RunFailedError
from ...metrics import every
from ...types import Dataset, NamedResources, PromptTemplate
from .settings import PromptSearchSettings
from .state import StateT, write_best, write_json
from .trials import Trials

if TYPE_CHECKING:
    from openai import AsyncOpenAI

SettingsT = TypeVar("SettingsT", bound=PromptSearchSettings)


@dataclass(frozen=True)
class SearchInputs:
    """All that a search is given beside its settings."""

    client: AsyncOpenAI
    context: AlgorithmContext
    name: str
    """Resource name of the prompt."""
    seed_prompt: PromptTemplate
    """The prompt to improve."""
    resources: NamedResources
    """All resources that an agent is given."""
    train_dataset: Dataset[Any]
    val_dataset: Dataset[Any]


class PromptSearchRun(ABC, Generic[SettingsT, StateT]):
    """One run of a search.

    Args:
        state: of a search that has not begun.
    """

    def __init__(self, settings: SettingsT, inputs: SearchInputs, state: StateT) -> None:
        context = inputs.context
        self.settings = settings
        self.logger = context.logger
        self.checkpoints = context.checkpoints
        self.resume = context.resume
        self.adapter = context.adapter if isinstance(context.adapter, TraceToMessages) else TraceToMessages()
        self.seed_prompt = inputs.seed_prompt
        self.train_dataset = inputs.train_dataset
        self.val_dataset = inputs.val_dataset
        self.state = state
        self.trials = Trials(
            context.store, self.logger, settings, inputs.name, inputs.seed_prompt, inputs.resources, state
        )

    @property
    @abstractmethod
    def has_begun(self) -> bool:
        """True once `begin` is done."""

    @property
    @abstractmethod
    def has_ended(self) -> bool:
        """True where no further step is to be made."""

    @abstractmethod
    async def begin(self) -> None:
        """Measure the first prompt."""

    @abstractmethod
    async def step(self, number: int) -> Mapping[str, float | None]:
        """Look for better prompts once, count the step, and return its metrics."""

    async def all(self) -> None:
        """Begin or go on, to the end.

        Raises:
            RunFailedError: no rollout earned a reward.
        """
        await self._go_on()
        if not self.has_begun:
            await self.begin()
            await self._checkpoint()
        while not self.has_ended:
            self.log(await self.step(self.state.steps + 1))
            await self._checkpoint()
        if self.state.unrewarded and not self.state.rewarded:
            count = sum(self.state.unrewarded.values())
            raise RunFailedError(every(count, "rollout"), self.state.unrewarded)
        best = self.state.winner
        assert best is not None  # begin() has measured one
        await self.trials.publish(best)
        if self.checkpoints is not None:
            where = await asyncio.to_thread(self.checkpoints.save_result, "prompt", self._write_result)
            self.logger.note(f"the best prompt, {best.name}, is in {where}")

    def log(self, metrics: Mapping[str, float | None]) -> None:
        """Log those metrics of a step that are known."""
        self.logger.log({name: value for name, value in metrics.items() if value is not None}, step=self.state.steps)
        self.state.logged += 1

    async def _go_on(self) -> None:
        latest = self.checkpoints.latest_checkpoint() if self.checkpoints is not None else None
        if self.resume and latest is not None:
            self.state = await asyncio.to_thread(type(self.state).read, latest[1], self.seed_prompt.template)
            self.trials.state = self.state
            self.logger.note(f"resumed after {self.state.unit} {self.state.steps}")

    async def _checkpoint(self) -> None:
        if self.checkpoints is not None:
            await asyncio.to_thread(self.checkpoints.save_checkpoint, self.state.steps, self.state.write)

    def _write_result(self, folder: Path) -> None:
        best: Any = self.state.winner
        write_best(folder, best)
        result = {"prompt": self.trials.prompt(best).model_dump(), **asdict(best), "history": self.state.history}
        write_json(folder / self.state.file(), result)
