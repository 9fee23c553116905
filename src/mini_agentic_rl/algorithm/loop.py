"""The loop of a training: measure, warm up, measure, [sample, update]*, measure; resumed from its latest checkpoint.

`Loop.run` is a run from the first measurement to the last, `Loop.step` one step of it:

    sampling.py, staleness.py     rollouts of the step's tasks (tasks.py), by the current weights or ahead of
                                  learning; groups.py turns them into groups
    expert_prefix.py              failed tasks tried again with an expert's first calls
    grpo.py, ppo.py               groups in, new weights out: advantages, one packed batch, loss, optimizer steps
    measure.py, sft.py            accuracy and validation; imitation before the first step
    checkpoint.py, state.py       checkpoints; the state of the run
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Sequence

import numpy as np

from ..errors import RunFailedError
from ..metrics import every
from ..policy import count_parameters
from ..processes import CoreWatch, peak_memory_bytes
from ..semconv import AGL_LEARNER, LearnerSpanAttributes
from ..store import LightningStore
from ..types import Span
from .checkpoint import Checkpointing
from .expert_prefix import with_prefixed_groups
from .measure import FIRST, LAST, Measuring
from .rollouts import counted_causes, refuse_failed
from .sampling import IdleSteps, LostSteps, SampledStep, StepSampler, untrained_in_all
from .sft import warm_up
from .staleness import AheadSampler
from .state import RunState, SeenCall

logger = logging.getLogger(__name__)


class Loop(RunState):
    """One run of an algorithm, from the first measurement to the last."""

    sampler: StepSampler | AheadSampler
    """Source of the rollouts of each step; made by `run`."""
    checkpointing: Checkpointing
    measuring: Measuring
    _lost: LostSteps

    async def run(self) -> None:
        """Take the run to its end: from its beginning, or from its latest checkpoint if it is resumed."""
        self.checkpointing = Checkpointing(self)
        self.measuring = Measuring(self, self.checkpointing)
        self._lost = LostSteps()
        self.objective = await self.policy.run_async(
            lambda: self.algorithm.objective(self.policy, self.learner_settings)
        )
        trained = [parameter for learner in self.objective.learners.values() for parameter in learner.parameters]
        counts = await self.policy.run_async(lambda: count_parameters(self.policy.model.base, trained))
        self.algorithm.parameters = {"trained": counts.trained, "all": counts.total}
        self.logger.note(str(counts))
        await self.checkpointing.resume()
        await self.add_resources()
        try:
            if not self.progress.warmed_up:
                await self.measuring.measure_once(FIRST)
                warmed_up = await warm_up(self, self.checkpointing)
                if self.settings.kl_coef > 0:
                    for learner in self.objective.learners.values():
                        await self.policy.run_async(learner.keep_reference)
                if warmed_up:
                    await self.measuring.measure("after SFT")
                self.progress.warmed_up = True
                await self.checkpointing.write()
            await self._reinforce()
        except (asyncio.CancelledError, KeyboardInterrupt):
            self.checkpointing.interrupted()
            raise
        await self.checkpointing.write()
        await self.checkpointing.save_result()

    async def _reinforce(self) -> None:
        """Take all steps, with the measurements and checkpoints that are due after each."""
        if self.total_steps == 0:
            if self.evaluations:
                refuse_failed(self.evaluations[-1].rollouts)
            return
        if self.progress.step < self.total_steps:
            self.show_steps()
        idle = IdleSteps(self.progress.step)
        await self.measuring.measure_between()  # left out by an interruption
        await self.measuring.validate()
        sampler = StepSampler if self.settings.max_staleness == 0 else AheadSampler
        self.sampler = sampler(self, self.objective.has_signal)
        await self.sampler.open()
        while self.progress.step < self.total_steps and not self.measuring.is_stalled:
            metrics = await self.step()
            self.log(metrics)
            self.logger.advance()
            if (message := idle.after_step(metrics)) is not None:
                self.logger.note(message)
            await self._keep_step()
        await record_seen(self.store, self.objective.take_seen())
        await self.sampler.close()
        for message in (idle.at_the_end(), untrained_in_all(self.progress.rollouts, self.progress.untrained)):
            if message is not None:
                self.logger.note(message)
        await self.measuring.take_best()
        await self.measuring.measure_once(LAST)

    async def step(self) -> dict[str, float]:
        """Publish the weights, run rollouts, group them, and update every adapter; return metrics.

        The step is counted in the run's progress in the turn in which the weights change, so that an interruption finds
        both or neither.

        Raises:
            RunFailedError: many rollouts in a row could not be trained.
        """
        await record_seen(self.store, self.objective.take_seen())
        cost, progress = StepCost(self), self.progress
        sampled = await self.sampler.sample()  # publishes the weights first
        progress.rollouts += sampled.rollouts
        progress.trainable += sampled.trainable
        for reason, count in sampled.untrained.items():
            progress.count_untrained(reason, count)
        self._lost.after_step(sampled)
        if self.settings.expert_prefix:
            sampled = await with_prefixed_groups(self, sampled)
        cost.sampled()
        share = self.sampler.learning_share
        metrics = sampled.metrics | await self.served.learn_async(lambda: self._learn(sampled), share)
        metrics |= cost.learnt(samples_meanwhile=share > 0)
        return metrics | await self.sampler.finish_step()

    def _learn(self, sampled: SampledStep) -> dict[str, float]:
        """Update every adapter and count the step, on the torch thread: an interruption may not come in between."""
        metrics: dict[str, float] = {}
        for adapter, groups in sampled.groups.items():
            update = self.objective.update(adapter, groups)
            metrics |= {self.named(adapter, name): value for name, value in update.items()}
        self.progress.step += 1
        self.sampler.learnt(sampled)
        return metrics

    async def _keep_step(self) -> None:
        """Write the checkpoints, and make the measurements, that are due after a step."""
        progress = self.progress
        last = progress.step == self.total_steps
        if not progress.trainable:  # a checkpoint would count these steps as done
            if last:
                reasons = counted_causes(progress.untrained).counts
                raise RunFailedError(f"{every(progress.rollouts, 'rollout')} of the training", reasons)
            return
        if progress.step % self.steps_per_epoch == 0:
            await self.checkpointing.save_epoch(progress.step // self.steps_per_epoch)
        if last or progress.step % self.settings.checkpoint_every == 0:
            await self.checkpointing.write()
        await self.measuring.measure_between()
        await self.measuring.validate()


class StepCost:
    """Time, tokens and cores of a step, from the creation of the object on."""

    def __init__(self, run: RunState) -> None:
        self._run = run
        self._sampled_tokens = run.served.sampler.sampled_tokens
        self._computed_tokens = run.policy.counters().computed_tokens
        self._prompts = run.served.prompt_counts()
        self._cores = CoreWatch()
        self._started = self._sampled = time.perf_counter()
        self._tokens = 0

    def sampled(self) -> None:
        """Note that sampling has ended."""
        self._sampled = time.perf_counter()
        self._tokens = self._run.served.sampler.sampled_tokens - self._sampled_tokens

    def learnt(self, *, samples_meanwhile: bool) -> dict[str, float]:
        """Note that learning has ended; return metrics, and add the seconds to the run's.

        Args:
            samples_meanwhile: sampling went on during learning, so tokens per second are those of the whole step.
        """
        run, ended = self._run, time.perf_counter()
        sampling, learning = self._sampled - self._started, ended - self._sampled
        tokens, seconds = self._tokens, sampling
        if samples_meanwhile:
            tokens = run.served.sampler.sampled_tokens - self._sampled_tokens
            seconds += learning
        run.progress.spend("sampling", sampling)
        run.progress.spend("learning", learning)
        prompts = run.served.prompt_counts()
        drift = {f"drift/{kind}": float(count - self._prompts.get(kind, 0)) for kind, count in prompts.items()}
        use = self._cores.use()
        return drift | {
            "machine/cores": use.cores,
            "machine/cores_free": use.free,
            "tokens_per_second": tokens / max(1e-9, seconds),
            "sampling/computed_tokens": float(run.policy.counters().computed_tokens - self._computed_tokens),
            "seconds/sampling": sampling,
            "seconds/learning": learning,
            "memory_gib": peak_memory_bytes() / 2**30,
        }


async def record_seen(store: LightningStore, calls: Sequence[SeenCall]) -> None:
    """Add a span to each attempt among the calls: what the learner computed at each trained token, so that a dashboard
    can colour tokens by it. A failure of the store is only logged: no result of the run depends on these spans.

    The loop calls this when the next step begins, or the last one has ended: nothing may be awaited between an update
    and its place in the metrics, or an interruption there would find one without the other.
    """
    by_attempt: dict[tuple[str, str], list[SeenCall]] = {}
    for call in calls:
        if call.record.rollout_id and call.record.attempt_id and np.isfinite(call.logprobs_N).all():
            by_attempt.setdefault((call.record.rollout_id, call.record.attempt_id), []).append(call)
    if not by_attempt:
        return
    now = time.time()
    try:
        numbers = await store.get_many_span_sequence_ids(list(by_attempt))
        spans = [
            Span(
                rollout_id=rollout_id,
                attempt_id=attempt_id,
                sequence_id=number,
                trace_id=secrets.token_hex(16),
                span_id=secrets.token_hex(8),
                name=AGL_LEARNER,
                start_time=now,
                end_time=now,
                attributes={
                    LearnerSpanAttributes.VERSION: seen[0].version,
                    LearnerSpanAttributes.SPAN_IDS: [str(call.record.metadata.get("span_id", "")) for call in seen],
                    LearnerSpanAttributes.LENGTHS: [int(call.logprobs_N.size) for call in seen],
                    LearnerSpanAttributes.LOGPROBS: [round(x, 4) for call in seen for x in call.logprobs_N.tolist()],
                    LearnerSpanAttributes.ENTROPIES: [round(x, 4) for call in seen for x in call.entropy_N.tolist()],
                },
            )
            for ((rollout_id, attempt_id), seen), number in zip(by_attempt.items(), numbers, strict=True)
        ]
        await store.add_many_spans(spans)
    except Exception as error:  # of any store
        logger.warning("log-probabilities and entropies of %d rollouts are not recorded: %s", len(by_attempt), error)
