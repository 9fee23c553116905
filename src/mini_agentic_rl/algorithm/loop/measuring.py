"""Measurements of a run, and validations during it: tasks that are never trained on choose the weights that are kept.

A validation is a greedy measurement before the first step, every `validation_every` steps, and after the last. The best
weights are kept, of several alike the first: their checkpoint stays until the run has ended. After `patience`
validations in a row that were no better, the run ends. The score of the best weights on these tasks is biased upwards,
since they were chosen by it; held-out tasks measure the result.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ...metrics import counted, percent
from ...types import Dataset
from ..answers import OF_TRANSFER, answer_rows
from ..measure import evaluate
from ..rollouts import Evaluation
from .checkpoint import Checkpointing, restore_weights
from .state import LoopState, RunProgress

FIRST, LAST = "before", "after RL"
_TASKS_BEFORE: Final = 50
"""Maximum number of tasks of the measurement before a warm-up."""


class Measuring:
    """Runs held-out tasks with the current weights, and keeps the results in the run's progress."""

    def __init__(self, run: LoopState, checkpointing: Checkpointing) -> None:
        self._run = run
        self._checkpointing = checkpointing

    async def measure(self, name: str) -> None:
        """Measure the accuracy on the held-out tasks; at the beginning and at the end on those of the transfer too."""
        run = self._run
        if run.val_dataset is not None and len(run.val_dataset) > 0:
            size, resources_id = run.settings.eval_size, run.val_resources
            if name == FIRST and run.warms_up:
                # The accuracy of rewards is that after the warm-up. This measurement asks whether the model can do the
                # task at all: answers may be longer, and there are fewer tasks so that it takes as long.
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
        """Measure if that is due after the steps so far, and was not done."""
        run = self._run
        step, every, name = run.progress.step, run.settings.eval_every, f"step {run.progress.step}"
        is_due = every > 0 and 0 < step < run.total_steps and step % every == 0
        if is_due and await self.measure_once(name):
            run.show_steps()

    @property
    def is_stalled(self) -> bool:
        """True if validations have not become better for so long that the run is to end."""
        return is_stalled(self._run.progress, self._run.settings.patience)

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
        best = progress.best_validation
        if best is not None and best["step"] == progress.step:
            await self._checkpointing.write()
        run.show_steps()

    async def take_best(self) -> None:
        """Take back the weights that were validated best."""
        run = self._run
        best = run.progress.best_validation
        if best is None:
            return
        kept = dict(() if run.context.checkpoints is None else run.context.checkpoints.checkpoints())
        if best["step"] != run.progress.step and best["step"] not in kept:
            run.logger.note("the last weights are kept: the checkpoint of those that were validated best is not there")
            return
        if best["step"] != run.progress.step:
            folder = kept[best["step"]]
            await run.policy.run_async(lambda: restore_weights(folder, run.policy, run.objective.learners))
        run.logger.note(outcome(best, run.progress.validation, run.progress.step, run.total_steps))

    async def measure_once(self, name: str) -> bool:
        """Measure, unless that was done before an interruption; return False then."""
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


def is_due(step: int, total: int, every: int, validations: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether the weights after `step` of `total` steps are still to be validated."""
    return (step % every == 0 or step == total) and all(row["step"] != step for row in validations)


def is_stalled(progress: RunProgress, patience: int | None) -> bool:
    """Return whether so many validations after the best one were no better; a patience of None never ends a run."""
    best = progress.best_validation
    if best is None or patience is None:
        return False
    return len(progress.validation) - 1 - [row["step"] for row in progress.validation].index(best["step"]) >= patience


def outcome(best: Mapping[str, Any], validations: Sequence[Mapping[str, Any]], step: int, total: int) -> str:
    """Return which weights are kept, and why the run ended before its last step where it did."""
    early = "" if step == total else f"stopped after step {step} of {total}: validation stalled; "
    share = percent(best["correct"] / max(1, best["count"]))
    kept = "the last weights are kept" if best["step"] == step else f"the weights of step {best['step']} are kept"
    return f"{early}{kept}, the best of {counted(len(validations), 'validation')} ({share} of {best['count']} tasks)"
