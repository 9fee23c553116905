"""Mini-GRPO: group relative policy optimization (Shao et al. 2024) of the agent that a person already has.

    measure -> warm up (if asked) -> measure -> [draw tasks -> G rollouts each -> advantages -> one step]* -> measure

The policy serves an OpenAI-compatible endpoint, the runners run the agent against it, the store holds what happened,
and the update reads it back as token trees.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from ...policy import EngineSettings, Learner, LearnerSettings, LoraSettings, PolicyError
from ...types import Dataset, EnqueueRolloutRequest, NamedResources, RolloutConfig
from ..base import Algorithm
from ..evaluation import Evaluation, evaluate
from ..rollouts import FinishedRollout, count_untrainable, run_rollouts
from ..seeds import derive_seed, tasks_of_step
from ..serving import ServedPolicy
from ..warm_start import WarmStart, warm_up
from .batch import Group, Trajectory
from .progress import Progress, read_progress, restore, write_checkpoint
from .settings import GRPOSettings
from .update import batch_of, group_metrics, update

logger = logging.getLogger(__name__)

LLM_RESOURCE = "llm"
"""Name of the resource under which the agent finds its endpoint."""


class MiniGRPO(Algorithm):
    """Trains the model that it serves.

    Args:
        model: "embedded", a folder, a hub id, or a loaded Hugging Face model.
        tokenizer: its tokenizer; None takes the one beside the model.
        settings: the loop; single settings may also be given by name (`total_steps=10`).
        lora: the adapter; None trains every weight.
        learner: the optimizer.
        engine: sampling.
        warm_start: conversations to imitate first; None leaves that out.
        load_options: `dtype`, `device`, `quantization`, `trust_remote_code` of `load_model`.
        keep_open: leave policy and endpoint running after the run, for `close()` to end.

    Raises:
        pydantic.ValidationError: a setting is out of its range or has no such name.
    """

    def __init__(
        self,
        model: Any = "embedded",
        tokenizer: Any | None = None,
        *,
        settings: GRPOSettings | None = None,
        lora: LoraSettings | None = LoraSettings(),  # noqa: B008  # frozen
        learner: LearnerSettings | None = None,
        engine: EngineSettings | None = None,
        warm_start: WarmStart | None = None,
        load_options: Mapping[str, Any] | None = None,
        keep_open: bool = False,
        **overrides: Any,
    ) -> None:
        super().__init__()
        self.settings = GRPOSettings(**((settings or GRPOSettings()).model_dump() | overrides))
        if self.settings.kl_coef > 0 and lora is None:
            raise PolicyError("kl_coef needs LoRA: under full training no reference weights are left; set kl_coef 0")
        self.learner_settings = learner or LearnerSettings()
        self.warm_start = warm_start
        self.served: ServedPolicy | None = None
        self.evaluations: list[Evaluation] = []
        self.progress = Progress()
        self._model = model
        self._tokenizer = tokenizer
        self._lora = lora
        self._engine = (engine or EngineSettings()).model_copy(update={"deterministic": self.settings.deterministic})
        self._load_options = dict(load_options or {})
        self._keep_open = keep_open

    @property
    def summary(self) -> Mapping[str, Any]:
        """`accuracy` (measurements in order), `seconds` by phase, `untrained` (reason to count), `steps`."""
        return {
            "accuracy": list(self.progress.accuracy),
            "seconds": dict(self.progress.seconds),
            "untrained": dict(self.progress.untrained),
            "steps": self.progress.step,
        }

    def close(self) -> None:
        """End policy and endpoint (only needed with `keep_open`)."""
        if self.served is not None:
            self.served.close()
            self.served = None

    async def run(self, train_dataset: Dataset[Any] | None = None, val_dataset: Dataset[Any] | None = None) -> None:
        """The whole loop; see the top of this module.

        Raises:
            ValueError: there is nothing to train on.
            PolicyError: the model cannot be had.
        """
        if self.settings.total_steps > 0 and (train_dataset is None or len(train_dataset) == 0):
            raise ValueError("train_dataset is empty: give MiniGRPO at least one task")
        started = time.perf_counter()
        self.context.logger.phase("loading the model")
        self.served = await asyncio.to_thread(
            ServedPolicy.load,
            self._model,
            self._tokenizer,
            engine=self._engine,
            lora=self._lora,
            seed=derive_seed(self.settings.seed, "adapter"),
            **self._load_options,
        )
        try:
            await asyncio.to_thread(self.served.serve, store=self.context.store)
            self.progress.spend("load", time.perf_counter() - started)
            await _Run(self, self.served, train_dataset, val_dataset).all()
        finally:
            if not self._keep_open:
                await asyncio.to_thread(self.close)


class _Run:
    """One execution of the loop."""

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
            await asyncio.to_thread(checkpoints.save_adapter, self.policy.save)

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
        server = self.served.server
        if server is None:
            raise RuntimeError("the policy is not served")
        common = {"max_tokens": self.settings.max_new_tokens}
        for attribute, temperature in (("_train_resources", self.settings.temperature), ("_val_resources", 0.0)):
            named: NamedResources = {
                **self.context.initial_resources,
                LLM_RESOURCE: server.as_resource({"temperature": temperature, **common}),
            }
            setattr(self, attribute, (await self.store.add_resources(named)).resources_id)

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
        if self.progress.step >= self.settings.total_steps:
            return
        self.logger.phase("reinforcement learning", self.settings.total_steps)
        self.logger.advance(self.progress.step)
        while self.progress.step < self.settings.total_steps:
            figures = await self._step(learner)
            self._log(figures)
            self.logger.advance()
            if self.progress.step == self.settings.total_steps:
                break
            if self.progress.step % self.settings.checkpoint_every == 0:
                await self._checkpoint(learner)
            if self.settings.eval_every and self.progress.step % self.settings.eval_every == 0:
                await self._measure(f"step {self.progress.step}")
                self.logger.phase("reinforcement learning", self.settings.total_steps)
                self.logger.advance(self.progress.step)
        await self._measure("after RL")

    async def _step(self, learner: Learner) -> dict[str, float]:
        started = time.perf_counter()
        counters = self.policy.engine.counters
        sampled_before = counters.sampled_tokens
        groups = await self._sample_groups()
        sampled = time.perf_counter()
        batch = batch_of(groups, self.settings)
        figures = group_metrics(groups, batch)

        def learn() -> dict[str, float]:  # counts its step itself: an interruption may not come in between
            found = {} if batch is None else update(learner, batch, self.settings)
            self.progress.step += 1
            return found

        figures |= await self.policy.run_async(learn)
        ended = time.perf_counter()
        self.progress.spend("sampling", sampled - started)
        self.progress.spend("learning", ended - sampled)
        return figures | {
            "tokens_per_second": (counters.sampled_tokens - sampled_before) / max(1e-9, sampled - started),
            "seconds/sampling": sampled - started,
            "seconds/learning": ended - sampled,
            "memory_gib": peak_memory_bytes() / 2**30,
        }

    async def _sample_groups(self) -> list[Group]:
        if self.train_dataset is None:
            raise ValueError("train_dataset is empty: give MiniGRPO at least one task")
        dataset, settings, step = self.train_dataset, self.settings, self.progress.step
        rows = tasks_of_step(settings.seed, len(dataset), step, settings.tasks_per_step)
        requests = [
            EnqueueRolloutRequest(
                input=dataset[row],
                mode="train",
                resources_id=self._train_resources,
                config=RolloutConfig(timeout_seconds=settings.rollout_timeout),
                metadata={
                    "step": step,
                    "group": f"{step}/{index}",
                    "sampling_seed": derive_seed(settings.seed, "rollout", step, index, sample),
                },
            )
            for index, row in enumerate(rows)
            for sample in range(settings.samples_per_prompt)
        ]
        finished = await run_rollouts(self.store, requests, lambda _: None)
        for reason, count in count_untrainable(finished).items():
            self.progress.untrained[reason] = self.progress.untrained.get(reason, 0) + count
        size = settings.samples_per_prompt
        return [_group(f"{step}/{i}", finished[i * size : (i + 1) * size]) for i in range(len(rows))]

    def _learner_settings(self) -> LearnerSettings:
        settings = self.algorithm.learner_settings
        if settings.schedule == "constant" or settings.total_steps:
            return settings
        steps = self.settings.total_steps * self.settings.epochs_per_batch
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


def _group(task_id: str, finished: Sequence[FinishedRollout]) -> Group:
    """The rollouts of one task that can be trained."""
    trajectories = [
        Trajectory(f.rollout.rollout_id, f.records, f.reward)
        for f in finished
        if f.untrainable is None and f.reward is not None
    ]
    return Group(task_id, trajectories)


def peak_memory_bytes() -> int:
    """The most memory this process has held."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
