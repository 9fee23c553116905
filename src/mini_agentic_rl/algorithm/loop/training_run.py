"""One run of an algorithm, as every part of its loop sees it: what it was given, how far it is, where it reports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol

from ...gateway import ServedPolicy
from ...logging import CountedCauses
from ...policy import LearnerSettings, Policy
from ...types import Dataset, NamedResources
from ..base import AlgorithmContext
from ..rollouts import Evaluation
from .objective import Objective
from .progress import RunProgress
from .settings import LoopSettings
from .warm_start import WarmStart

LONG_ANSWERS: Final = 4
"""Times `max_new_tokens` that an answer may have before a warm-up."""


class LoopedAlgorithm(Protocol):
    """The part of an algorithm that its loop reads, and the progress that it keeps there."""

    progress: RunProgress
    evaluations: list[Evaluation]
    warm_starts: dict[str, WarmStart]
    learner_settings: LearnerSettings
    parameters: dict[str, int]
    validation: Dataset[Any] | None
    transfer: Dataset[Any] | None

    @property
    def settings(self) -> LoopSettings: ...

    @property
    def context(self) -> AlgorithmContext: ...

    def objective(self, policy: Policy, learner: LearnerSettings) -> Objective: ...


class TrainingRun:
    """The algorithm, the policy that it serves, the tasks, and the resources that agents find."""

    def __init__(
        self,
        algorithm: LoopedAlgorithm,
        served: ServedPolicy,
        train_dataset: Dataset[Any] | None,
        val_dataset: Dataset[Any] | None,
    ) -> None:
        self.algorithm = algorithm
        self.settings: LoopSettings = algorithm.settings
        self.context = algorithm.context
        self.store = self.context.store
        self.logger = self.context.logger
        self.served = served
        self.policy = served.policy
        self.train_dataset = train_dataset
        self.val_dataset = val_dataset
        self.total_steps = self.settings.steps(0 if train_dataset is None else len(train_dataset))
        self.causes = CountedCauses()
        """Reasons for which rollouts were not trained so far; only new ones are logged."""
        self.train_resources = ""
        """Id of what the rollouts of the training find."""
        self.val_resources = ""
        """Id of what the rollouts of a measurement find: the same model, greedy."""
        self.long_answer_resources = ""
        """Id of the same with room for longer answers: a model that was not warmed up uses many words."""

    @property
    def progress(self) -> RunProgress:
        """Steps and results so far."""
        return self.algorithm.progress

    @property
    def dataset(self) -> Dataset[Any]:
        """The training tasks.

        Raises:
            ValueError: there are none.
        """
        if self.train_dataset is None:
            raise ValueError(f"train_dataset is empty: give {type(self.algorithm).__name__} at least one task")
        return self.train_dataset

    @property
    def steps_per_epoch(self) -> int:
        """Number of steps that draw every task once."""
        return -(-len(self.dataset) // self.settings.tasks_per_step)

    @property
    def learner_settings(self) -> LearnerSettings:
        """Settings of each optimizer, with the steps of the whole run where their schedule asks for them."""
        settings = self.algorithm.learner_settings
        if settings.schedule == "constant" or settings.total_steps:
            return settings
        steps = self.total_steps * self.settings.epochs_per_batch
        return settings.model_copy(update={"total_steps": max(1, steps)})

    @property
    def warms_up(self) -> bool:
        """True if the run imitates before its first step."""
        starts = self.algorithm.warm_starts.values()
        return self.train_dataset is not None and any(start.settings.examples > 0 for start in starts)

    async def add_resources(self, resources: NamedResources) -> None:
        """Put what agents find into the store: `resources` beside the model that is trained."""
        self.train_resources = await self._added(resources, self.settings.temperature)
        self.val_resources = await self._added(resources, 0.0)
        if self.warms_up:
            self.long_answer_resources = await self._added(resources, 0.0, LONG_ANSWERS)

    async def _added(self, resources: NamedResources, temperature: float, longer: int = 1) -> str:
        sampling = {"temperature": temperature, "max_tokens": longer * self.settings.max_new_tokens}
        named = self.served.resources(resources, sampling)
        return (await self.store.add_resources(named)).resources_id

    def named(self, adapter: str, name: str, separator: str = "/") -> str:
        """Put the name of the adapter before that of what is its own, where there are several."""
        return name if len(self.policy.model.adapters) == 1 else f"{adapter}{separator}{name}"

    def log(self, metrics: Mapping[str, float], *, step: int | None = None) -> None:
        """Log metrics under a step of the imitation, or else under the steps of reinforcement learning so far."""
        self.logger.log(metrics, step=self.progress.step if step is None else step)
        self.progress.logged += 1

    def tell(self, message: str | None) -> None:
        """Note a message, where there is one."""
        if message is not None:
            self.logger.note(message)

    def show_steps(self) -> None:
        """Show how many steps are done."""
        self.logger.phase("reinforcement learning", self.total_steps)
        self.logger.advance(self.progress.step)
