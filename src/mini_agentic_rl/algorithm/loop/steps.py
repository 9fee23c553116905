"""A step of reinforcement learning: sample, then learn from it; or learn while what comes next is being sampled."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from ...processes import CoreWatch, peak_memory_bytes
from .expert_prefix import with_prefixed_groups
from .groups import Group, group_metrics
from .idle_steps import LostSteps
from .objective import Objective
from .replay import remember, replayed_groups
from .sampling import SampledStep, sample_groups
from .seen_tokens import record_seen
from .step_tasks import StepTasks
from .training_run import TrainingRun


class Steps(Protocol):
    """Takes the steps of a run."""

    async def step(self) -> dict[str, float]:
        """Take one; its metrics. The step is counted in the run's progress with the weights that it changes, so that
        an interruption finds both or neither.

        Raises:
            RunFailedError: many rollouts in a row could not be trained.
        """

    async def close(self) -> None:
        """Give up what was sampled and will not be learnt."""


class ExactSteps:
    """All rollouts of a step are sampled by the weights that learn from them: `max_staleness=0`."""

    def __init__(self, run: TrainingRun, objective: Objective) -> None:
        self._run = run
        self._objective = objective
        self._step_tasks = StepTasks(run.settings)
        self._lost = LostSteps()

    async def step(self) -> dict[str, float]:
        """See `Steps.step`."""
        run = self._run
        await record_seen(run.store, self._objective.take_seen())
        work = StepWork(run)
        tasks = self._step_tasks.of_step(run.dataset, run.progress)
        await run.served.publish()
        sampled = await sample_groups(
            run.context,
            run.settings,
            run.dataset,
            tasks=tasks,
            resources_id=run.train_resources,
            models=run.served.trained_models,
            has_signal=self._objective.has_signal,
            causes=run.causes,
        )
        count_rollouts(run, sampled, self._lost)
        if run.settings.expert_prefix:
            sampled = await with_prefixed_groups(run, sampled, tasks)
        replayed = await replayed_groups(run.context, run.settings, run.served.trained_models, run.progress)
        work.sampled()

        def learn() -> dict[str, float]:
            return learn_once(
                run,
                self._objective,
                sampled,
                replayed,
                lambda: self._step_tasks.remember(run.progress, tasks, sampled.mean_rewards),
            )

        metrics = sampled.metrics | await run.served.learn_async(learn)
        return metrics | work.learnt() | {"seconds/tail": sampled.tail_seconds}

    async def close(self) -> None:
        """Record what the learner saw of the last step: all is learnt."""
        await record_seen(self._run.store, self._objective.take_seen())


def count_rollouts(run: TrainingRun, sampled: SampledStep, lost: LostSteps) -> None:
    """Count what a step sampled in the run's progress.

    Raises:
        RunFailedError: many rollouts in a row could not be trained.
    """
    run.progress.rollouts += sampled.rollouts
    run.progress.trainable += sampled.trainable
    for reason, count in sampled.untrained.items():
        run.progress.untrained[reason] = run.progress.untrained.get(reason, 0) + count
    lost.after_step(sampled)


def learn_once(
    run: TrainingRun,
    objective: Objective,
    sampled: SampledStep,
    replayed: Mapping[str, Sequence[Group]],
    on_learnt: Callable[[], None],
) -> dict[str, float]:
    """Update every adapter and count the step, on the torch thread: an interruption may not come in between.

    Args:
        replayed: groups of earlier steps that join those of this one, by adapter.
        on_learnt: notes in the progress what was learnt, after the step was counted.
    """
    learnt: dict[str, float] = {}
    for adapter, groups in sampled.groups.items():
        again = replayed.get(adapter, [])
        own = objective.update(adapter, [*groups, *again])
        if again:  # what was sampled is told of this step alone
            own |= group_metrics(groups) | {"groups/replayed": float(len(again))}
        learnt |= {run.named(adapter, name): value for name, value in own.items()}
    run.progress.step += 1
    on_learnt()
    remember(run.progress, sampled.groups, run.settings)
    return learnt


class StepWork:
    """Time and tokens of a step, from its making on."""

    def __init__(self, run: TrainingRun) -> None:
        self._run = run
        self._before = (run.served.sampler.sampled_tokens, run.policy.counters().computed_tokens)
        self._prompts = run.served.prompt_counts()
        self._cores = CoreWatch()
        self._started = self._sampled = time.perf_counter()
        self._tokens = 0

    def sampled(self) -> None:
        """Note that what is to be learnt is there."""
        self._sampled = time.perf_counter()
        self._tokens = self._run.served.sampler.sampled_tokens - self._before[0]

    def learnt(self, *, beside: bool = False) -> dict[str, float]:
        """Note that it is learnt; return metrics, and add the seconds to the run's.

        Args:
            beside: whether sampling went on meanwhile, so that its tokens are those of the whole step.
        """
        run, ended = self._run, time.perf_counter()
        sampling, learning = self._sampled - self._started, ended - self._sampled
        tokens, spent = self._tokens, sampling
        if beside:
            tokens = run.served.sampler.sampled_tokens - self._before[0]
            spent += learning
        run.progress.spend("sampling", sampling)
        run.progress.spend("learning", learning)
        computed = run.policy.counters().computed_tokens - self._before[1]
        prompts = run.served.prompt_counts()
        drift = {f"drift/{kind}": float(count - self._prompts.get(kind, 0)) for kind, count in prompts.items()}
        use = self._cores.use()
        return drift | {
            "machine/cores": use.cores,
            "machine/cores_free": use.free,
            "tokens_per_second": tokens / max(1e-9, spent),
            "sampling/computed_tokens": float(computed),
            "seconds/sampling": sampling,
            "seconds/learning": learning,
            "memory_gib": peak_memory_bytes() / 2**30,
        }
