"""The loop of a training: measure, warm up, measure, [sample, update]*, measure; with a checkpoint to go on from."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from ...gateway import ServedPolicy
from ...logging import CountedCauses
from ...metrics import SFT
from ...policy import LearnerSettings, Policy, count_parameters
from ...types import Dataset, NamedResources
from ..answers import answer_rows
from ..base import AlgorithmContext, ResultKind
from ..measure import evaluate
from ..peak_memory import peak_memory_bytes
from ..rollouts import Evaluation, refuse_failed
from ..seeds import tasks_of_step
from .curriculum import TaskSource
from .groups import group_metrics
from .idle_steps import IdleSteps, LostSteps, failure, untrained_in_all
from .objective import Objective
from .progress import RunProgress, read_progress, restore, restore_weights, save_adapters, write_checkpoint
from .replay import remember, replayed_groups
from .sampling import SampledStep, sample_groups
from .settings import LoopSettings
from .step_tasks import StepTasks
from .validation import best_of, is_due, is_stalled, told
from .warm_start import WarmStart, warm_up

_FIRST, _LAST = "before", "after RL"


class Looped(Protocol):
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


class Loop:
    """One run of an algorithm with an `Objective`, from the first measurement to the last."""

    def __init__(
        self,
        algorithm: Looped,
        served: ServedPolicy,
        resources: NamedResources,
        train_dataset: Dataset[Any] | None,
        val_dataset: Dataset[Any] | None,
    ) -> None:
        """`resources` are those that agents find beside the model that is trained."""
        self.algorithm = algorithm
        self.settings: LoopSettings = algorithm.settings
        self.context = algorithm.context
        self.store = self.context.store
        self.logger = self.context.logger
        self.policy = served.policy
        self.served = served
        self.resources = resources
        self.adapters = served.policy.model.adapters
        self.train_dataset = train_dataset
        self.val_dataset = val_dataset
        self.total_steps = self.settings.steps(0 if train_dataset is None else len(train_dataset))
        self._step_tasks = StepTasks(self.settings)
        self._causes = CountedCauses()
        self._lost = LostSteps()
        self._train_resources = ""
        self._val_resources = ""

    @property
    def progress(self) -> RunProgress:
        return self.algorithm.progress

    async def all(self) -> None:
        objective = await self.policy.run_async(lambda: self.algorithm.objective(self.policy, self._learner_settings()))
        await self._count_parameters(objective)
        await self._resume(objective)
        self._train_resources = await self._resources(self.settings.temperature)
        self._val_resources = await self._resources(0.0)
        try:
            if not self.progress.warmed_up:
                await self._measure(_FIRST)
                await self._warm_up()
                self.progress.warmed_up = True
                await self._checkpoint(objective)
            await self._reinforce(objective)
        except (asyncio.CancelledError, KeyboardInterrupt):
            if self.context.checkpoints is None:
                self.logger.note("interrupted: nothing is kept, because the trainer has no output_dir")
            elif self.progress.warmed_up:  # a warm-up is short: it is begun again
                self.logger.note(f"interrupted: writing a checkpoint; `resume` goes on after step {self.progress.step}")
                self._checkpoint_now(objective)
            raise
        await self._checkpoint(objective)
        await asyncio.to_thread(self._save_result)

    async def _count_parameters(self, objective: Objective) -> None:
        trained = [parameter for learner in objective.learners.values() for parameter in learner.parameters]
        found = await self.policy.run_async(lambda: count_parameters(self.policy.model.base, trained))
        self.algorithm.parameters = {"trained": found.trained, "all": found.total}
        self.logger.note(str(found))

    def _save_result(self) -> None:
        kind: ResultKind = "adapters" if len(self.adapters) > 1 else "adapter"
        if self.context.checkpoints is not None:
            self.context.checkpoints.save_result(kind, self._write_result)

    def _save_epoch(self, epoch: int) -> None:
        def write(folder: Path) -> None:
            self._write_result(folder)
            self.served.tokenizer.save_pretrained(folder)

        if self.context.checkpoints is not None:
            self.context.checkpoints.save_epoch(epoch, write)

    def _write_result(self, folder: Path) -> None:
        if len(self.adapters) > 1:
            save_adapters(folder, self.policy)
        else:
            self.policy.save(folder, self.adapters[0])

    async def _resume(self, objective: Objective) -> None:
        latest = self.context.checkpoints.latest_checkpoint() if self.context.checkpoints is not None else None
        if not self.context.resume or latest is None:
            return
        _, folder = latest
        self.algorithm.progress = read_progress(folder)
        await self.policy.run_async(lambda: restore(folder, self.policy, objective))
        self.logger.note(f"resumed after step {self.progress.step}")

    async def _resources(self, temperature: float) -> str:
        sampling = {"temperature": temperature, "max_tokens": self.settings.max_new_tokens}
        named = self.served.resources(self.resources, sampling)
        return (await self.store.add_resources(named)).resources_id

    async def _measure(self, name: str) -> None:
        if self.val_dataset is not None and len(self.val_dataset) > 0:
            found = await self._measure_tasks(name, self.val_dataset, self.settings.eval_size)
            self._log({"accuracy": found.accuracy})
        if self.algorithm.transfer is not None and name in (_FIRST, _LAST):
            found = await self._measure_tasks(f"{name}, transfer", self.algorithm.transfer, None)
            self._log({"transfer/accuracy": found.accuracy})

    async def _measure_tasks(self, name: str, tasks: Dataset[Any], size: int | None) -> Evaluation:
        started = time.perf_counter()
        found = await self._evaluated(name, tasks, size)
        self.algorithm.evaluations.append(found)
        if self.context.checkpoints is not None:
            rows = await asyncio.to_thread(answer_rows, found, self.progress.step)
            self.context.checkpoints.save_answers(rows, [str(row["name"]) for row in self.progress.accuracy])
        self.progress.accuracy.append({"name": name, "correct": sum(found.correct), "count": len(found.rollouts)})
        self.progress.spend("evaluation", time.perf_counter() - started)
        return found

    async def _evaluated(self, name: str, tasks: Dataset[Any], size: int | None) -> Evaluation:
        await self.served.publish()
        return await evaluate(
            self.store,
            tasks,
            name=name,
            resources_id=self._val_resources,
            logger_=self.logger,
            size=size,
            seed=self.settings.seed,
            rollout_timeout=self.settings.rollout_timeout,
            causes=self._causes,
        )

    async def _warm_up(self) -> None:
        warm_starts = {
            adapter: start for adapter, start in self.algorithm.warm_starts.items() if start.settings.examples > 0
        }
        if not warm_starts or self.train_dataset is None:
            return
        started = time.perf_counter()
        for adapter, warm_start in warm_starts.items():
            await self._imitate(adapter, warm_start, self.train_dataset)
        self.progress.spend("sft", time.perf_counter() - started)
        await self._measure("after SFT")

    async def _imitate(self, adapter: str, warm_start: WarmStart, dataset: Dataset[Any]) -> None:
        server = self.served.server
        if server is None:
            raise RuntimeError("the policy is not served")
        size = len(dataset)
        # From the end of the first epoch, so that reinforcement learning begins with tasks not imitated.
        rows = tasks_of_step(self.settings.seed, size, 0, size)[-warm_start.settings.examples :]
        conversations = warm_start.conversations([dataset[row] for row in rows])
        self.logger.phase(self._named(adapter, "SFT", " "), -(-len(conversations) // warm_start.settings.batch_size))

        def on_step(step: int, metrics: Mapping[str, float]) -> None:
            self.logger.advance()
            found = {self._named(adapter, f"{SFT}{name}"): value for name, value in metrics.items()}
            self._log(found, step=step + 1)

        await warm_up(
            self.policy,
            server.renderer,
            conversations,
            warm_start.tools,
            warm_start.settings,
            self._learner_settings(),
            on_step,
            adapter,
        )

    async def _reinforce(self, objective: Objective) -> None:
        settings, progress = self.settings, self.progress
        if self.total_steps == 0:
            if self.algorithm.evaluations:
                refuse_failed(self.algorithm.evaluations[-1].rollouts)
            return
        if progress.step < self.total_steps:
            self._show_steps()
        idle = IdleSteps(self.progress.step)
        await self._measure_between()  # one that an interruption has left out
        await self._validate(objective)
        while progress.step < self.total_steps and not is_stalled(progress.validation, settings.patience):
            metrics = await self._step(objective)
            self._log(metrics)
            self.logger.advance()
            self._tell(idle.after_step(metrics))
            last = progress.step == self.total_steps
            if not progress.trainable:  # a checkpoint would say that these steps are done
                if last:
                    raise failure(progress.rollouts, progress.untrained)
                continue
            if progress.step % self._steps_per_epoch == 0:
                await asyncio.to_thread(self._save_epoch, progress.step // self._steps_per_epoch)
            if last or progress.step % settings.checkpoint_every == 0:
                await self._checkpoint(objective)
            await self._measure_between()
            await self._validate(objective)
        self._tell(idle.at_the_end())
        self._tell(untrained_in_all(progress.rollouts, progress.untrained))
        await self._take_best(objective)
        if all(row["name"] != _LAST for row in progress.accuracy):
            await self._measure(_LAST)

    async def _measure_between(self) -> None:
        """Measure where that is due after as many steps as were taken, and was not done."""
        step, every, name = self.progress.step, self.settings.eval_every, f"step {self.progress.step}"
        is_due = every > 0 and 0 < step < self.total_steps and step % every == 0
        if is_due and all(row["name"] != name for row in self.progress.accuracy):
            await self._measure(name)
            self._show_steps()

    async def _validate(self, objective: Objective) -> None:
        """Validate where that is due, and write a checkpoint of the weights that are the best so far."""
        progress, settings, tasks = self.progress, self.settings, self.algorithm.validation
        if tasks is None or not is_due(progress.step, self.total_steps, settings.validation_every, progress.validation):
            return
        started = time.perf_counter()
        found = await self._evaluated(f"validation, step {progress.step}", tasks, settings.validation_size or None)
        progress.validation.append({"step": progress.step, "correct": sum(found.correct), "count": len(found.rollouts)})
        progress.spend("validation", time.perf_counter() - started)
        self._log({"validation/accuracy": found.accuracy})
        best = best_of(progress.validation)
        if best is not None and best["step"] == progress.step:
            await self._checkpoint(objective)
        self._show_steps()

    async def _take_best(self, objective: Objective) -> None:
        """Take back the weights that were validated best."""
        best = best_of(self.progress.validation)
        if best is None:
            return
        kept = dict(() if self.context.checkpoints is None else self.context.checkpoints.checkpoints())
        if best["step"] != self.progress.step and best["step"] not in kept:
            self.logger.note("the last weights are kept: the checkpoint of those that were validated best is not there")
            return
        if best["step"] != self.progress.step:
            folder = kept[best["step"]]
            await self.policy.run_async(lambda: restore_weights(folder, self.policy, objective.learners))
        self.logger.note(told(best, self.progress.validation, self.progress.step, self.total_steps))

    def _tell(self, message: str | None) -> None:
        if message is not None:
            self.logger.note(message)

    @property
    def _steps_per_epoch(self) -> int:
        return -(-len(self._dataset) // self.settings.tasks_per_step)

    def _show_steps(self) -> None:
        self.logger.phase("reinforcement learning", self.total_steps)
        self.logger.advance(self.progress.step)

    async def _step(self, objective: Objective) -> dict[str, float]:
        started = time.perf_counter()
        before = self.policy.counters()
        prompts_before = self.served.prompts()
        tasks = self._step_tasks.of_step(self._dataset, self.progress)
        found = await self._sample(tasks, objective)
        replayed = await replayed_groups(self.context, self.settings, self.served.trained_models, self.progress)
        sampled = time.perf_counter()
        prompts = self.served.prompts()
        after = self.policy.counters()
        sampled_tokens = after.sampled_tokens - before.sampled_tokens

        def learn() -> dict[str, float]:  # counts its step itself: an interruption may not come in between
            learnt: dict[str, float] = {}
            for adapter, groups in found.groups.items():
                again = replayed.get(adapter, [])
                own = objective.update(adapter, [*groups, *again])
                if again:  # what was sampled is told of this step alone
                    own |= group_metrics(groups) | {"groups/replayed": float(len(again))}
                learnt |= {self._named(adapter, name): value for name, value in own.items()}
            self.progress.step += 1
            self._step_tasks.remember(self.progress, tasks, found.mean_rewards)
            remember(self.progress, found.groups, self.settings)
            return learnt

        metrics = found.metrics | await self.served.learn_async(learn)
        ended = time.perf_counter()
        self.progress.spend("sampling", sampled - started)
        self.progress.spend("learning", ended - sampled)
        metrics |= {f"drift/{kind}": float(count - prompts_before[kind]) for kind, count in prompts.items()}
        return metrics | {
            "tokens_per_second": sampled_tokens / max(1e-9, sampled - started),
            "sampling/computed_tokens": float(after.computed_tokens - before.computed_tokens),
            "seconds/sampling": sampled - started,
            "seconds/tail": found.tail_seconds,
            "seconds/learning": ended - sampled,
            "memory_gib": peak_memory_bytes() / 2**30,
        }

    @property
    def _dataset(self) -> Dataset[Any]:
        if self.train_dataset is None:
            raise ValueError(f"train_dataset is empty: give {type(self.algorithm).__name__} at least one task")
        return self.train_dataset

    async def _sample(self, tasks: TaskSource, objective: Objective) -> SampledStep:
        await self.served.publish()
        found = await sample_groups(
            self.context,
            self.settings,
            self._dataset,
            tasks=tasks,
            resources_id=self._train_resources,
            models=self.served.trained_models,
            has_signal=objective.has_signal,
            causes=self._causes,
        )
        self.progress.rollouts += found.rollouts
        self.progress.trainable += found.trainable
        for reason, count in found.untrained.items():
            self.progress.untrained[reason] = self.progress.untrained.get(reason, 0) + count
        self._lost.after_step(found)
        return found

    def _learner_settings(self) -> LearnerSettings:
        settings = self.algorithm.learner_settings
        if settings.schedule == "constant" or settings.total_steps:
            return settings
        steps = self.total_steps * self.settings.epochs_per_batch
        return settings.model_copy(update={"total_steps": max(1, steps)})

    async def _checkpoint(self, objective: Objective) -> None:
        if self.context.checkpoints is not None:
            await self.policy.run_async(lambda: self._write_checkpoint(objective))

    def _checkpoint_now(self, objective: Objective) -> None:
        def job() -> None:
            if self.policy.is_whole:
                self._write_checkpoint(objective)
            else:
                self.logger.note("the step under way has failed: the checkpoint before it stays the last")

        self.policy.run(job)

    def _write_checkpoint(self, objective: Objective) -> None:
        if self.context.checkpoints is not None:
            best = best_of(self.progress.validation)
            self.context.checkpoints.save_checkpoint(
                self.progress.step,
                lambda folder: write_checkpoint(folder, self.policy, objective, self.progress),
                () if best is None else (best["step"],),
            )

    def _named(self, adapter: str, name: str, separator: str = "/") -> str:
        """Put the name of the adapter before that of what is its own, where there are several."""
        return name if len(self.adapters) == 1 else f"{adapter}{separator}{name}"

    def _log(self, metrics: Mapping[str, float], *, step: int | None = None) -> None:
        """Log metrics under a step of the imitation, or else under the steps of reinforcement learning so far."""
        self.logger.log(metrics, step=self.progress.step if step is None else step)
        self.progress.logged += 1
