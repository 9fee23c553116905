"""The loop of Mini-GRPO: measure, warm up, measure, [sample, update]*, measure; with a checkpoint to go on from."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ...policy import Learner, LearnerSettings
from ...types import Dataset
from ..evaluation import evaluate
from ..memory import peak_memory_bytes
from ..resources import with_policy
from ..seeds import tasks_of_step
from ..serving import ServedPolicy
from ..warm_start import warm_up
from .progress import Progress, read_progress, restore, write_checkpoint
from .sampling import Sampled, sample_groups, trained_calls
from .update import batch_of, group_metrics, update

if TYPE_CHECKING:
    from .mini_grpo import MiniGRPO

_LAST = "after RL"


class Loop:
    """One execution of Mini-GRPO, from the first measurement to the last."""

    def __init__(
        self,
        algorithm: MiniGRPO,
        served: ServedPolicy,
        train_dataset: Dataset[Any] | None,
        val_dataset: Dataset[Any] | None,
    ) -> None:
        self.algorithm = algorithm
        self.settings = algorithm.settings
        self.context = algorithm.context
        self.store = self.context.store
        self.logger = self.context.logger
        self.policy = served.policy
        self.served = served
        self.train_dataset = train_dataset
        self.val_dataset = val_dataset
        self.total_steps = self.settings.steps(0 if train_dataset is None else len(train_dataset))
        self._train_resources = ""
        self._val_resources = ""

    @property
    def progress(self) -> Progress:
        return self.algorithm.progress

    async def all(self) -> None:
        learner = await self.policy.run_async(lambda: self.policy.learner(self._learner_settings()))
        await self._resume(learner)
        await self._add_resources()
        try:
            if not self.progress.warmed_up:
                await self._measure("before")
                await self._warm_up()
                self.progress.warmed_up = True
                await self._checkpoint(learner)
            await self._reinforce(learner)
        except (asyncio.CancelledError, KeyboardInterrupt):
            if self.progress.warmed_up:  # a warm-up is short: it is begun again
                self.logger.note("interrupted: writing a checkpoint")
                self._checkpoint_now(learner)
            raise
        await self._checkpoint(learner)
        if self.context.checkpoints is not None:
            checkpoints = self.context.checkpoints
            await asyncio.to_thread(checkpoints.save_result, "adapter", self.policy.save)

    async def _resume(self, learner: Learner) -> None:
        latest = self.context.checkpoints.latest_checkpoint() if self.context.checkpoints is not None else None
        if not self.context.resume or latest is None:
            return
        _, folder = latest
        self.algorithm.progress = read_progress(folder)
        await self.policy.run_async(lambda: restore(folder, self.policy, learner))
        self.logger.note(f"resumed after step {self.progress.step}")

    async def _add_resources(self) -> None:
        """The endpoint, with the sampling parameters of training and of measuring."""
        self._train_resources = await self._resources(self.settings.temperature)
        self._val_resources = await self._resources(0.0)

    async def _resources(self, temperature: float) -> str:
        server = self.served.server
        if server is None:
            raise RuntimeError("the policy is not served")
        sampling = {"temperature": temperature, "max_tokens": self.settings.max_new_tokens}
        named = with_policy(self.context.initial_resources, server.as_resource(sampling))
        return (await self.store.add_resources(named)).resources_id

    async def _measure(self, name: str) -> None:
        if self.val_dataset is None or len(self.val_dataset) == 0:
            return
        started = time.perf_counter()
        found = await evaluate(
            self.store,
            self.val_dataset,
            name=name,
            resources_id=self._val_resources,
            logger_=self.logger,
            size=self.settings.eval_size,
            seed=self.settings.seed,
            rollout_timeout=self.settings.rollout_timeout,
        )
        self.algorithm.evaluations.append(found)
        self.progress.accuracy.append({"name": name, "correct": sum(found.correct), "count": len(found.rollouts)})
        self.progress.spend("evaluation", time.perf_counter() - started)
        self._log({"accuracy": found.accuracy})

    async def _warm_up(self) -> None:
        warm_start = self.algorithm.warm_start
        if warm_start is None or warm_start.settings.examples == 0 or self.train_dataset is None:
            return
        server = self.served.server
        if server is None:
            raise RuntimeError("the policy is not served")
        started = time.perf_counter()
        size = len(self.train_dataset)
        # From the end of the first epoch, so that reinforcement learning begins with tasks not imitated.
        rows = tasks_of_step(self.settings.seed, size, 0, size)[-warm_start.settings.examples :]
        dataset = self.train_dataset
        conversations = [warm_start.demonstration(dataset[row]) for row in rows]
        self.logger.phase("SFT", -(-len(conversations) // warm_start.settings.batch_size))

        def on_step(step: int, figures: Mapping[str, float]) -> None:
            self.logger.advance()
            self._log({f"sft/{name}": value for name, value in figures.items()})

        await warm_up(
            self.policy,
            server.renderer,
            conversations,
            warm_start.tools,
            warm_start.settings,
            self._learner_settings(),
            on_step,
        )
        self.progress.spend("sft", time.perf_counter() - started)
        await self._measure("after SFT")

    async def _reinforce(self, learner: Learner) -> None:
        settings, progress = self.settings, self.progress
        if self.total_steps == 0:
            return
        if progress.step < self.total_steps:
            self._show_steps()
        while progress.step < self.total_steps:
            self._log(await self._step(learner))
            self.logger.advance()
            last = progress.step == self.total_steps
            if last or progress.step % settings.checkpoint_every == 0:
                await self._checkpoint(learner)
            if not last and settings.eval_every and progress.step % settings.eval_every == 0:
                await self._measure(f"step {progress.step}")
                self._show_steps()
        if all(row["name"] != _LAST for row in progress.accuracy):
            await self._measure(_LAST)

    def _show_steps(self) -> None:
        self.logger.phase("reinforcement learning", self.total_steps)
        self.logger.advance(self.progress.step)

    async def _step(self, learner: Learner) -> dict[str, float]:
        started = time.perf_counter()
        counters = self.policy.engine.counters
        sampled_before, computed_before = counters.sampled_tokens, counters.computed_tokens
        found = await self._sample()
        sampled = time.perf_counter()
        sampled_tokens = counters.sampled_tokens - sampled_before
        batch = batch_of(found.groups, self.settings)
        figures = group_metrics(found.groups, batch) | found.figures

        def learn() -> dict[str, float]:  # counts its step itself: an interruption may not come in between
            learnt = {} if batch is None else update(learner, batch, self.settings)
            self.progress.step += 1
            return learnt

        figures |= await self.policy.learn_async(learn)
        ended = time.perf_counter()
        self.progress.spend("sampling", sampled - started)
        self.progress.spend("learning", ended - sampled)
        return figures | {
            "tokens_per_second": sampled_tokens / max(1e-9, sampled - started),
            "sampling/computed_tokens": float(counters.computed_tokens - computed_before),
            "seconds/sampling": sampled - started,
            "seconds/learning": ended - sampled,
            "memory_gib": peak_memory_bytes() / 2**30,
        }

    async def _sample(self) -> Sampled:
        if self.train_dataset is None:
            raise ValueError("train_dataset is empty: give MiniGRPO at least one task")
        found = await sample_groups(
            self.context,
            self.settings,
            self.train_dataset,
            step=self.progress.step,
            resources_id=self._train_resources,
            trained=trained_calls(self.context, self.served.name),
        )
        for reason, count in found.untrained.items():
            self.progress.untrained[reason] = self.progress.untrained.get(reason, 0) + count
        return found

    def _learner_settings(self) -> LearnerSettings:
        settings = self.algorithm.learner_settings
        if settings.schedule == "constant" or settings.total_steps:
            return settings
        steps = self.total_steps * self.settings.epochs_per_batch
        return settings.model_copy(update={"total_steps": max(1, steps)})

    async def _checkpoint(self, learner: Learner) -> None:
        if self.context.checkpoints is not None:
            await self.policy.run_async(lambda: self._write_checkpoint(learner))

    def _checkpoint_now(self, learner: Learner) -> None:
        if self.context.checkpoints is not None:
            self.policy.run(lambda: self._write_checkpoint(learner))

    def _write_checkpoint(self, learner: Learner) -> None:
        if self.context.checkpoints is not None:
            self.context.checkpoints.save_checkpoint(
                self.progress.step, lambda folder: write_checkpoint(folder, self.policy, learner, self.progress)
            )

    def _log(self, figures: Mapping[str, float]) -> None:
        self.logger.log(figures, step=self.progress.logged)
        self.progress.logged += 1
