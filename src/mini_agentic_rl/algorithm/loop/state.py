"""The state of a run: what the algorithm was given, how far the run is, where it reports.

`Loop` (`loop.py`) adds the steps to it. Measuring, warm-up, sampling and checkpoints read and change it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypedDict

from ...gateway import ServedPolicy
from ...logging import CountedCauses
from ...policy import LearnerSettings, Policy
from ...types import Dataset, NamedResources
from ..base import AlgorithmContext
from ..rollouts import Evaluation
from ..settings import LoopSettings, WarmStart
from .objective import Objective

LONG_ANSWERS: Final = 4
"""Factor by which an answer may be longer than `max_new_tokens` before a warm-up."""


class Replayable(TypedDict):
    """A group of an earlier step that can be replayed."""

    step: int
    """Number of finished steps when it was sampled, its own among them."""
    adapter: str
    rollouts: list[str]
    """Ids of its rollouts."""
    right: float
    """Share of those that were right."""
    uses: int
    """Number of times that it was replayed."""


@dataclass
class RunProgress:
    """The data cursor and the results so far: with the seed the first three say which tasks come next."""

    step: int = 0
    """Finished reinforcement-learning steps."""
    extra_tasks: int = 0
    """Tasks that these steps drew beyond `tasks_per_step` each, by dynamic sampling."""
    pass_rates: dict[str, float] = field(default_factory=dict)
    """Fraction of rollouts that solved each task, by its row, where a curriculum asks for it."""
    warmed_up: bool = False
    """True once the supervised warm-up is done."""
    imitated: dict[str, int] = field(default_factory=dict)
    """Optimizer steps of the supervised warm-up so far, by adapter."""
    readiness: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Result of the latest probe of the warm-up, by adapter: the fields of `Readiness`, and `ready`."""
    solved: dict[str, str] = field(default_factory=dict)
    """A right rollout of each task, by its row, where failed tasks are tried again with an expert's first calls."""
    prefix_calls: dict[str, int] = field(default_factory=dict)
    """Calls that a task is given at such a try, by its kind, or by its row where it has none."""
    level_draws: dict[str, int] = field(default_factory=dict)
    """Tasks of each level drawn so far, where a curriculum asks for it."""
    replay: list[Replayable] = field(default_factory=list)
    """Groups that can be replayed."""
    validation: list[dict[str, Any]] = field(default_factory=list)
    """Validations so far: step, correct, count."""
    logged: int = 0
    """Rows of metrics so far."""
    accuracy: list[dict[str, Any]] = field(default_factory=list)
    """Measurements so far: name, correct, count."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Time by phase."""
    untrained: dict[str, int] = field(default_factory=dict)
    """Rollouts that gave nothing to train on, by reason."""
    rollouts: int = 0
    """Rollouts of the training."""
    trainable: int = 0
    """Those of them that could be trained."""
    run: str = ""
    """Name of the run in the metadata of rollouts, where sampling runs ahead."""
    drawn: int = 0
    """Groups that were drawn so far, where sampling runs ahead."""
    pending: dict[str, int] = field(default_factory=dict)
    """Tasks of those of them that were not learnt, by their numbers (as text, for JSON)."""
    updates: list[dict[str, int]] = field(default_factory=list)
    """Versions of all adapters after each of the last updates, where sampling runs ahead."""

    @property
    def best_validation(self) -> Mapping[str, Any] | None:
        """The first of the validations with the largest share of right answers; None where there is none."""
        return max(self.validation, key=lambda row: row["correct"] / max(1, row["count"]), default=None)

    def spend(self, phase: str, seconds: float) -> None:
        """Add to a phase's time."""
        self.seconds[phase] = self.seconds.get(phase, 0.0) + seconds


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


class LoopState:
    """State of one run of an algorithm. Everything that a checkpoint keeps is in `progress`."""

    objective: Objective
    """The update; made by `Loop.complete`."""

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
        """Id of the resources of training rollouts."""
        self.val_resources = ""
        """Id of the resources of measurements: the same model, greedy."""
        self.long_answer_resources = ""
        """Id of the same with longer answers, which a model that was not warmed up gives."""

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
        """Add the resources of rollouts to the store: `resources`, and the model that is trained."""

        async def add(temperature: float, length_factor: int = 1) -> str:
            sampling = {"temperature": temperature, "max_tokens": length_factor * self.settings.max_new_tokens}
            named = self.served.resources(resources, sampling)
            return (await self.store.add_resources(named)).resources_id

        self.train_resources = await add(self.settings.temperature)
        self.val_resources = await add(0.0)
        if self.warms_up:
            self.long_answer_resources = await add(0.0, LONG_ANSWERS)

    def named(self, adapter: str, name: str, separator: str = "/") -> str:
        """Return `name`, with the adapter's name before it where several adapters are trained."""
        return name if len(self.policy.model.adapters) == 1 else f"{adapter}{separator}{name}"

    def log(self, metrics: Mapping[str, float], *, step: int | None = None) -> None:
        """Log metrics under a step of the imitation, or else under the steps of reinforcement learning so far."""
        self.logger.log(metrics, step=self.progress.step if step is None else step)
        self.progress.logged += 1

    def show_steps(self) -> None:
        """Show how many steps are done."""
        self.logger.phase("reinforcement learning", self.total_steps)
        self.logger.advance(self.progress.step)
