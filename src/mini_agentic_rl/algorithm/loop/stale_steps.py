"""Steps that learn while what comes next is being sampled: `max_staleness` above 0.

A step takes the oldest complete groups (`group_queue.py`), updates on them while the engine goes on for whatever
rollouts are under way (`Policy.learn` with a share), and draws new ones. Nothing else is different from an exact step:
the same objectives, metrics, replay and checkpoints. Groups are learnt as they become complete, in any order, and no
step waits for its slowest rollouts; complete groups are learnt while others finish.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..rollouts import count_untrainable
from .adapters import by_adapter
from .group_queue import AheadGroup, GroupQueue
from .idle_steps import LostSteps
from .objective import Objective
from .replay import replayed_groups
from .sampling import SampledStep, mean_rewards, metrics_of
from .seen_tokens import record_seen
from .staleness import token_ages, with_update
from .steps import StepWork, count_rollouts, learn_once
from .training_run import TrainingRun


class StaleSteps:
    """Takes steps on rollouts of weights that are a few updates older."""

    def __init__(self, run: TrainingRun, objective: Objective) -> None:
        self._run = run
        self._objective = objective
        self._queue = GroupQueue(run, objective.has_signal)
        self._lost = LostSteps()

    async def open(self) -> None:
        """Take up what an earlier start of the run has left, and begin to sample."""
        await self._run.served.publish()
        await self._queue.restore()
        await self._queue.fill()

    async def step(self) -> dict[str, float]:
        """See `Steps.step`."""
        run, settings, models = self._run, self._run.settings, self._run.served.trained_models
        await record_seen(run.store, self._objective.take_seen())
        work = StepWork(run)
        batch = await self._queue.take()
        found = self._sampled(batch)
        count_rollouts(run, found, self._lost)
        replayed = await replayed_groups(run.context, settings, models, run.progress)
        trained = [one for group in batch for one in group.finished if one.untrainable is None]
        ages = token_ages(trained, run.progress.updates, models)
        work.sampled()

        def on_learnt() -> None:
            self._queue.learnt(batch, found.mean_rewards)
            now = {adapter: run.policy.model.versions[adapter] for adapter in run.policy.model.adapters}
            run.progress.updates = with_update(run.progress.updates, now, settings.max_staleness + 2)

        def learn() -> dict[str, float]:
            return learn_once(run, self._objective, found, replayed, on_learnt)

        metrics = found.metrics | await run.served.learn_async(learn, settings.sampling_share)
        metrics |= work.learnt(beside=True) | {
            "staleness/mean": float(np.mean(ages)) if ages.size else 0.0,
            "staleness/max": float(ages.max(initial=0)),
            "staleness/too_old": float(self._queue.too_old),
            "staleness/waiting": float(self._queue.waiting),
        }
        self._queue.too_old = 0
        await run.served.publish()
        await self._queue.fill()
        return metrics

    async def close(self) -> None:
        """Cancel what was sampled ahead, and record what the learner saw of the last step."""
        await record_seen(self._run.store, self._objective.take_seen())
        await self._queue.close()

    def _sampled(self, batch: Sequence[AheadGroup]) -> SampledStep:
        run, settings = self._run, self._run.settings
        finished = [one for group in batch for one in group.finished]
        groups, unrewarded, of_adapters = by_adapter(
            finished, run.progress.step, run.served.trained_models, settings, run.causes
        )
        return SampledStep(
            groups=groups,
            untrained=dict(count_untrainable(finished, causes=run.causes) + unrewarded),
            rollouts=len(finished),
            trainable=sum(one.untrainable is None for one in finished),
            mean_rewards=mean_rewards(finished, [group.row for group in batch], settings.samples_per_prompt),
            metrics=metrics_of(finished) | of_adapters,
            tail_seconds=0.0,
        )
