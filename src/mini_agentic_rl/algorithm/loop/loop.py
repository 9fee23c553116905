"""The loop of a training: measure, warm up, measure, [sample, update]*, measure; with a checkpoint to go on from.

What it is made of stands beside it: a step (`steps.py`, or `stale_steps.py` where sampling runs ahead of learning), the
measurements (`measuring.py`), the warm-up (`warm_up.py`) and what is kept (`checkpointing.py`).
"""

from __future__ import annotations

import asyncio
from typing import Any

from ...gateway import ServedPolicy
from ...policy import count_parameters
from ...types import Dataset, NamedResources
from ..rollouts import refuse_failed
from .checkpointing import Checkpointing
from .idle_steps import IdleSteps, failure, untrained_in_all
from .measuring import Measuring
from .objective import Objective
from .stale_steps import StaleSteps
from .steps import ExactSteps, Steps
from .training_run import LoopedAlgorithm, TrainingRun
from .warm_up import warm_up


class Loop:
    """One run of an algorithm with an `Objective`, from the first measurement to the last."""

    def __init__(
        self,
        algorithm: LoopedAlgorithm,
        served: ServedPolicy,
        resources: NamedResources,
        train_dataset: Dataset[Any] | None,
        val_dataset: Dataset[Any] | None,
    ) -> None:
        """`resources` are those that agents find beside the model that is trained."""
        self.run = TrainingRun(algorithm, served, train_dataset, val_dataset)
        self.resources = resources

    async def complete(self) -> None:
        """Take the run to its end: from its beginning, or from its latest checkpoint where it is resumed."""
        run = self.run
        objective = await run.policy.run_async(lambda: run.algorithm.objective(run.policy, run.learner_settings))
        checkpointing = Checkpointing(run, objective)
        measuring = Measuring(run, objective, checkpointing)
        await self._count_parameters(objective)
        await checkpointing.resume()
        await run.add_resources(self.resources)
        try:
            if not run.progress.warmed_up:
                await measuring.measure_first()
                warmed_up = await warm_up(run, checkpointing)
                if run.settings.kl_coef > 0:
                    for learner in objective.learners.values():
                        await run.policy.run_async(learner.keep_reference)
                if warmed_up:
                    await measuring.measure("after SFT")
                run.progress.warmed_up = True
                await checkpointing.write()
            await self._reinforce(objective, measuring, checkpointing)
        except (asyncio.CancelledError, KeyboardInterrupt):
            checkpointing.interrupted()
            raise
        await checkpointing.write()
        await checkpointing.save_result()

    async def _count_parameters(self, objective: Objective) -> None:
        run = self.run
        trained = [parameter for learner in objective.learners.values() for parameter in learner.parameters]
        found = await run.policy.run_async(lambda: count_parameters(run.policy.model.base, trained))
        run.algorithm.parameters = {"trained": found.trained, "all": found.total}
        run.logger.note(str(found))

    async def _reinforce(self, objective: Objective, measuring: Measuring, checkpointing: Checkpointing) -> None:
        run = self.run
        if run.total_steps == 0:
            if run.algorithm.evaluations:
                refuse_failed(run.algorithm.evaluations[-1].rollouts)
            return
        if run.progress.step < run.total_steps:
            run.show_steps()
        idle = IdleSteps(run.progress.step)
        await measuring.measure_between()  # one that an interruption has left out
        await measuring.validate()
        steps = await self._steps(objective)
        while run.progress.step < run.total_steps and not measuring.is_stalled:
            await self._step(steps, idle, measuring, checkpointing)
        await steps.close()
        run.tell(idle.at_the_end())
        run.tell(untrained_in_all(run.progress.rollouts, run.progress.untrained))
        await measuring.take_best()
        await measuring.measure_last()

    async def _steps(self, objective: Objective) -> Steps:
        if self.run.settings.max_staleness == 0:
            return ExactSteps(self.run, objective)
        steps = StaleSteps(self.run, objective)
        await steps.open()
        return steps

    async def _step(self, steps: Steps, idle: IdleSteps, measuring: Measuring, checkpointing: Checkpointing) -> None:
        """Take a step, and do all that is due after it."""
        run, progress = self.run, self.run.progress
        metrics = await steps.step()
        run.log(metrics)
        run.logger.advance()
        run.tell(idle.after_step(metrics))
        last = progress.step == run.total_steps
        if not progress.trainable:  # a checkpoint would say that these steps are done
            if last:
                raise failure(progress.rollouts, progress.untrained)
            return
        if progress.step % run.steps_per_epoch == 0:
            await checkpointing.save_epoch(progress.step // run.steps_per_epoch)
        if last or progress.step % run.settings.checkpoint_every == 0:
            await checkpointing.write()
        await measuring.measure_between()
        await measuring.validate()
