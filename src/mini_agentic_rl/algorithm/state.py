"""The state of a run, which the parts of the loop share: sampling, warm-up, measuring and checkpoints.

`Objective` is the part that tells algorithms apart: from the groups of a step to new weights. Everything else, the
loop does for every algorithm alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from ..adapter import TracerTraceToTriplet, TrainedCalls
from ..gateway import ServedPolicy
from ..logging import CountedCauses
from ..metrics import MetricsLogger
from ..policy import Learner, LearnerSettings, SeenTerms
from ..semconv import SAMPLING_SEED
from ..store import LightningStore
from ..tokens import CompletionRecord
from ..types import Dataset, EnqueueRolloutRequest, NamedResources
from .base import AlgorithmContext
from .batch import TrainingBatch
from .groups import Group
from .rollouts import Evaluation, rollout_config
from .settings import LoopSettings, WarmStart
from .tasks import derive_seed

LONG_ANSWERS: Final = 4
"""Factor by which an answer may be longer than `max_new_tokens` before a warm-up."""


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

    def count_untrained(self, reason: str, count: int) -> None:
        """Count rollouts that gave nothing to train on."""
        self.untrained[reason] = self.untrained.get(reason, 0) + count


class SeenCall(NamedTuple):
    """One LLM call as the learner computed it before the update."""

    record: CompletionRecord
    version: int
    """Policy version of the learner's weights."""
    logprobs_N: npt.NDArray[np.float32]
    """Log-probabilities of its trained tokens [N]."""
    entropy_N: npt.NDArray[np.float32]
    """Entropies of the distributions that they were drawn from [N]."""


class Objective:
    """The update: makes new weights of rollouts. It is made once a run, and used on the torch thread alone."""

    def __init__(self, learners: Mapping[str, Learner]) -> None:
        """`learners` are the optimizers by the names of the adapters; the loop keeps them in checkpoints."""
        self.learners = learners
        self._seen: list[SeenCall] = []

    def has_signal(self, group: Group) -> bool:
        """Return True if training on the group could change the policy. Safe on any thread."""
        raise NotImplementedError

    def update(self, adapter: str, groups: Sequence[Group]) -> dict[str, float]:
        """Take all optimizer steps on the groups that one step sampled for `adapter`; return metrics. If there is
        nothing to learn from, no weight changes."""
        raise NotImplementedError

    def note_seen(self, batch: TrainingBatch, version: int, seen: SeenTerms) -> None:
        """Keep the numbers of a batch's first pass for `take_seen`."""
        end = 0
        for call in batch.calls:
            begin, end = end, end + call.trained_tokens
            self._seen.append(SeenCall(call, version, seen.logprobs_S[begin:end], seen.entropy_S[begin:end]))

    def take_seen(self) -> Sequence[SeenCall]:
        """Return the calls that were trained since the last call of this method."""
        seen, self._seen = self._seen, []
        return seen

    def save_state(self, folder: Path) -> None:
        """Write into the folder of a checkpoint what a run needs besides adapters and optimizers, such as a critic."""

    def load_state(self, folder: Path) -> None:
        """Read back what `save_state` wrote."""


class RunState:
    """State of one run of an algorithm. Everything that a checkpoint keeps is in `progress`."""

    objective: Objective
    """The update; made by `Loop.run`."""

    def __init__(
        self,
        algorithm: Any,
        served: ServedPolicy,
        resources: NamedResources,
        train_dataset: Dataset[Any] | None,
        val_dataset: Dataset[Any] | None,
    ) -> None:
        """
        Args:
            algorithm: a `ReinforcementLearning`; its progress and results are shared, not copied.
            resources: those that agents find beside the model that is trained.
        """
        self.algorithm = algorithm
        self.settings: LoopSettings = algorithm.settings
        self.context: AlgorithmContext = algorithm.context
        self.progress: RunProgress = algorithm.progress
        self.evaluations: list[Evaluation] = algorithm.evaluations
        self.warm_starts: Mapping[str, WarmStart] = algorithm.warm_starts
        self.validation: Dataset[Any] | None = algorithm.validation
        self.transfer: Dataset[Any] | None = algorithm.transfer
        self.store: LightningStore = self.context.store
        self.logger: MetricsLogger = self.context.logger
        self.served = served
        self.policy = served.policy
        self.resources = resources
        self.models = served.trained_models
        """The adapter that learns from the calls to each served model."""
        adapter = self.context.adapter
        filters = {
            "trained_agents": self.context.trained_agents,
            "agent_match": adapter.agent_match if isinstance(adapter, TracerTraceToTriplet) else None,
        }
        self.trained = TrainedCalls(
            agents={setting: pattern for setting, pattern in filters.items() if pattern is not None},
            models=frozenset(self.models),
        )
        """The LLM calls that are trained: those of the served model, under the filters of the agent and the adapter."""
        self.dataset: Dataset[Any] = () if train_dataset is None else train_dataset
        """The training tasks."""
        self.val_dataset = val_dataset
        self.total_steps = self.settings.steps(len(self.dataset))
        self.steps_per_epoch = -(-len(self.dataset) // self.settings.tasks_per_step)
        """Number of steps that draw every task once."""
        self.learner_settings: LearnerSettings = algorithm.learner_settings
        """Settings of each optimizer, with the steps of the whole run if their schedule needs them."""
        if self.learner_settings.schedule != "constant" and not self.learner_settings.total_steps:
            steps = max(1, self.total_steps * self.settings.epochs_per_batch)
            self.learner_settings = self.learner_settings.model_copy(update={"total_steps": steps})
        self.causes = CountedCauses()
        """Reasons for which rollouts were not trained so far; only new ones are logged."""
        self.train_resources = ""
        """Id of the resources of training rollouts."""
        self.val_resources = ""
        """Id of the resources of measurements: the same model, greedy."""
        self.long_answer_resources = ""
        """Id of the same with longer answers, which a model that was not warmed up gives."""

    @property
    def warms_up(self) -> bool:
        """True if the run imitates before its first step."""
        starts = self.warm_starts.values()
        return len(self.dataset) > 0 and any(start.settings.examples > 0 for start in starts)

    async def add_resources(self) -> None:
        """Add the resources of rollouts to the store: `resources`, and the model that is trained."""

        async def add(temperature: float, length_factor: int = 1) -> str:
            sampling = {"temperature": temperature, "max_tokens": length_factor * self.settings.max_new_tokens}
            named = self.served.resources(self.resources, sampling)
            return (await self.store.add_resources(named)).resources_id

        self.train_resources = await add(self.settings.temperature)
        self.val_resources = await add(0.0)
        if self.warms_up:
            self.long_answer_resources = await add(0.0, LONG_ANSWERS)

    def training_request(
        self, row: int, step: int, index: int, sample: int, /, *, kind: str = "rollout", **metadata: Any
    ) -> EnqueueRolloutRequest:
        """Return the request for a training rollout of the task in a row.

        Args:
            index: number of its group among those of the step and of the `kind`.
            sample: its number in the group.
            kind: part of the group's name and of the seed, for groups beside those that the step draws.
            metadata: added to its metadata.
        """
        settings = self.settings
        group = f"{step}/{index}" if kind == "rollout" else f"{step}/{kind}/{index}"
        seed = derive_seed(settings.seed, kind, step, index, sample)
        return EnqueueRolloutRequest(
            input=self.dataset[row],
            mode="train",
            resources_id=self.train_resources,
            config=rollout_config(settings.rollout_timeout, settings.on_failure, settings.max_attempts),
            metadata={"step": step, "group": group, SAMPLING_SEED: seed, **metadata},
        )

    def named(self, adapter: str, name: str, separator: str = "/") -> str:
        """Return `name`, after the adapter's name if several adapters are trained."""
        return name if len(self.policy.model.adapters) == 1 else f"{adapter}{separator}{name}"

    def log(self, metrics: Mapping[str, float], *, step: int | None = None) -> None:
        """Log metrics under a step of the imitation, or else under the steps of reinforcement learning so far."""
        self.logger.log(metrics, step=self.progress.step if step is None else step)
        self.progress.logged += 1

    def show_steps(self) -> None:
        """Show how many steps are done."""
        self.logger.phase("reinforcement learning", self.total_steps)
        self.logger.advance(self.progress.step)
