"""Measurements of a run: before, between and after, and the validations that choose the weights that are kept."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

from ...types import Dataset
from ..answers import OF_TRANSFER, answer_rows
from ..measure import evaluate
from ..rollouts import Evaluation
from .checkpointing import Checkpointing
from .objective import Objective
from .progress import restore_weights
from .training_run import TrainingRun
from .validation import best_of, is_due, is_stalled, outcome

FIRST, LAST = "before", "after RL"
_TASKS_BEFORE: Final = 50
"""Most tasks of the measurement before a warm-up."""


class Measuring:
    """Runs held-out tasks with the weights as they are, and remembers what was found in the run's progress."""

    def __init__(self, run: TrainingRun, objective: Objective, checkpointing: Checkpointing) -> None:
        self._run = run
        self._objective = objective
        self._checkpointing = checkpointing

    async def measure(self, name: str) -> None:
        """Measure the accuracy on the held-out tasks; at the beginning and at the end on those of the transfer too."""
        run = self._run
        if run.val_dataset is not None and len(run.val_dataset) > 0:
            size, resources_id = run.settings.eval_size, run.val_resources
            if name == FIRST and run.warms_up:
                # Rewards are judged from the measurement after the warm-up. This one asks whether the model can do the
                # task at all, so its answers get room to end, and fewer tasks keep the time alike.
                size = min(len(run.val_dataset), size or len(run.val_dataset), _TASKS_BEFORE)
                resources_id = run.long_answer_resources
            evaluation = await self._measure_tasks(name, run.val_dataset, size, resources_id)
            run.log({"accuracy": evaluation.accuracy})
        if run.algorithm.transfer is not None and name in (FIRST, LAST):
            evaluation = await self._measure_tasks(
                f"{name}{OF_TRANSFER}", run.algorithm.transfer, None, run.val_resources
            )
            run.log({"transfer/accuracy": evaluation.accuracy})

    async def measure_between(self) -> None:
        """Measure where that is due after as many steps as were taken, and was not done."""
        run = self._run
        step, every, name = run.progress.step, run.settings.eval_every, f"step {run.progress.step}"
        is_due = every > 0 and 0 < step < run.total_steps and step % every == 0
        if is_due and await self._measure_once(name):
            run.show_steps()

    async def measure_first(self) -> None:
        """Measure what is to be trained, unless that was done before an interruption."""
        await self._measure_once(FIRST)

    async def measure_last(self) -> None:
        """Measure what was trained, unless that was done before an interruption."""
        await self._measure_once(LAST)

    @property
    def is_stalled(self) -> bool:
        """True if validations have not become better for so long that the run is to end."""
        return is_stalled(self._run.progress.validation, self._run.settings.patience)

    async def validate(self) -> None:
        """Validate where that is due, and write a checkpoint of the weights that are the best so far."""
        run = self._run
        progress, settings, tasks = run.progress, run.settings, run.algorithm.validation
        if tasks is None or not is_due(progress.step, run.total_steps, settings.validation_every, progress.validation):
            return
        started = time.perf_counter()
        evaluation = await self._evaluated(
            f"validation, step {progress.step}", tasks, settings.validation_size or None, run.val_resources
        )
        progress.validation.append(
            {"step": progress.step, "correct": sum(evaluation.correct), "count": len(evaluation.rollouts)}
        )
        progress.spend("validation", time.perf_counter() - started)
        run.log({"validation/accuracy": evaluation.accuracy})
        best = best_of(progress.validation)
        if best is not None and best["step"] == progress.step:
            await self._checkpointing.write()
        run.show_steps()

    async def take_best(self) -> None:
        """Take back the weights that were validated best."""
        run = self._run
        best = best_of(run.progress.validation)
        if best is None:
            return
        kept = dict(() if run.context.checkpoints is None else run.context.checkpoints.checkpoints())
        if best["step"] != run.progress.step and best["step"] not in kept:
            run.logger.note("the last weights are kept: the checkpoint of those that were validated best is not there")
            return
        if best["step"] != run.progress.step:
            folder = kept[best["step"]]
            await run.policy.run_async(lambda: restore_weights(folder, run.policy, self._objective.learners))
        run.logger.note(outcome(best, run.progress.validation, run.progress.step, run.total_steps))

    async def _measure_once(self, name: str) -> bool:
        """Measure, unless the run's progress has that already; False then."""
        if any(row["name"] == name for row in self._run.progress.accuracy):
            return False
        await self.measure(name)
        return True

    async def _measure_tasks(self, name: str, tasks: Dataset[Any], size: int | None, resources_id: str) -> Evaluation:
        run = self._run
        started = time.perf_counter()
        evaluation = await self._evaluated(name, tasks, size, resources_id)
        run.algorithm.evaluations.append(evaluation)
        if run.context.checkpoints is not None:
            rows = await asyncio.to_thread(answer_rows, evaluation, run.progress.step)
            run.context.checkpoints.save_answers(rows, [str(row["name"]) for row in run.progress.accuracy])
        run.progress.accuracy.append(
            {"name": name, "correct": sum(evaluation.correct), "count": len(evaluation.rollouts)}
        )
        run.progress.spend("evaluation", time.perf_counter() - started)
        return evaluation

    async def _evaluated(self, name: str, tasks: Dataset[Any], size: int | None, resources_id: str) -> Evaluation:
        run = self._run
        await run.served.publish()
        return await evaluate(
            run.store,
            tasks,
            name=name,
            resources_id=resources_id,
            logger_=run.logger,
            size=size,
            seed=run.settings.seed,
            rollout_timeout=run.settings.rollout_timeout,
            causes=run.causes,
        )
