"""Sampling of one step: the tasks of the step as groups of rollouts, what happens to failures, and idle steps."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from ..adapter import count_tool_calls
from ..errors import RunFailedError
from ..metrics import IDLE, IdleCause, MetricsLogger, counted, every, idle_cause, latest, percent
from ..types import Rollout
from .groups import Group, groups_of, reward_metrics, rollouts_of
from .rollouts import FinishedRollout, count_reasons, counted_causes, last_text, run_rollouts
from .state import RunState
from .tasks import TaskDraws

logger = logging.getLogger(__name__)

SECONDS_BETWEEN_NOTES = 60.0
"""Seconds between two notes of how many rollouts of a long step have ended."""
_TAIL_SHARE: Final = 8
"""The tail of a step is the time of the last 1/8 of its rollouts."""
_MANY_TRUNCATED: Final = 0.5
"""Fraction of rollouts ended by the length bound from which on the message about an idle step mentions it."""
_HOPELESS_STEPS: Final = 3
_HOPELESS_ROLLOUTS: Final = 24


@dataclass(frozen=True)
class SampledStep:
    """Everything that one step sampled."""

    groups: Mapping[str, Sequence[Group]]
    """By adapter: one group a task, with the rollouts that can be trained."""
    rows: Sequence[int]
    """Row of the task of each group."""
    untrained: Mapping[str, int]
    """Rollouts that gave nothing to train on, by reason."""
    rollouts: int
    """Number of rollouts."""
    trainable: int
    """Number of those that can be trained."""
    mean_rewards: Mapping[int, float]
    """Mean reward of the rollouts of each task that have one, by its row."""
    metrics: dict[str, float]
    """Numbers of rollouts that have no reward, failed, were tried again, count as 0, exceeded their budget, or are left
    out; of calls that are not trained, and that called tools. With several adapters also the rewards, and for each
    adapter the number of rollouts that did not call it."""


class StepSampler:
    """Samples all rollouts of a step with the weights that learn from them: `max_staleness=0`."""

    learning_share: float = 0.0
    """Share of the device's time that sampling has while the learner computes."""

    def __init__(self, run: RunState, has_signal: Callable[[Group], bool]) -> None:
        """`has_signal` returns True if a group can change an adapter."""
        self._run = run
        self._has_signal = has_signal
        self._tasks = TaskDraws(run.settings, run.dataset, run.progress.pass_rates)
        self._drawn = 0

    async def open(self) -> None:
        """Do nothing: sampling begins with the step."""

    async def sample(self) -> SampledStep:
        """Publish the weights, run the rollouts of a step, and return its groups. With `dynamic_sampling` there are
        several rounds, each with as many tasks as groups with a signal are missing."""
        run, settings = self._run, self._run.settings
        step = run.progress.step
        rows: list[int] = []
        await run.served.publish()
        finished: list[FinishedRollout] = []
        rounds, missing, tail_seconds = 0, settings.tasks_per_step, 0.0
        while True:
            begin = len(rows)
            first = step * settings.tasks_per_step + run.progress.extra_tasks
            rows += self._tasks.draw(missing, step=step, first=first, drawn=rows)
            requests = [
                run.training_request(row, step, index, sample)
                for index, row in enumerate(rows[begin:], begin)
                for sample in range(settings.samples_per_prompt)
            ]
            on_progress = _progress_notes(run.logger, f"step {step + 1}", len(requests))
            started = time.perf_counter()
            ended = await run_rollouts(run.store, requests, on_progress, run.trained)
            tail_seconds += tail_of([f.rollout for f in ended], time.perf_counter() - started)
            finished += [as_zero(f) for f in ended] if settings.on_failure == "zero" else ended
            rounds += 1
            if not settings.dynamic_sampling or rounds == settings.max_sampling_rounds:
                break
            groups = groups_of(finished, step, run.models, settings)
            signals = [map(self._has_signal, of_adapter) for of_adapter in groups.values()]
            missing = settings.tasks_per_step - sum(map(any, zip(*signals, strict=True)))
            if missing <= 0:
                break
        self._drawn = len(rows)
        sampled = step_of(run, finished, rows)
        sampled.metrics["seconds/tail"] = tail_seconds
        if settings.dynamic_sampling:
            sampled.metrics["sampling/rounds"] = float(rounds)
        return sampled

    def learnt(self, sampled: SampledStep) -> None:
        """Update the data cursor and the curriculum in the run's progress, in the turn in which the weights change."""
        self._run.progress.extra_tasks += self._drawn - self._run.settings.tasks_per_step
        self._tasks.rate(sampled.mean_rewards)

    async def finish_step(self) -> dict[str, float]:
        """Return metrics about the step after it was learnt."""
        return {}

    async def close(self) -> None:
        """Do nothing: all that was sampled is learnt."""


def step_of(run: RunState, finished: Sequence[FinishedRollout], rows: Sequence[int]) -> SampledStep:
    """Return finished rollouts, `samples_per_prompt` of each row, as the run's next step; log new reasons for which
    rollouts are not trained.

    `rollout/tool_calls` is the mean number of LLM calls that were answered by a tool call, over the rollouts that
    offered tools; it is absent if none did. `rollout/same_answer` is the share of rollouts that ended with the most
    frequent last message.
    """
    size = run.settings.samples_per_prompt
    untrained = count_reasons(finished, lambda rollout: rollout.untrainable, "not trained", run.causes)
    usable = [f for f in finished if f.untrainable is None]
    rewards: dict[int, list[float]] = {}
    for row, rollout in zip(np.repeat(rows, size).tolist(), finished, strict=True):
        if rollout.untrainable is None and rollout.reward is not None:
            rewards.setdefault(row, []).append(rollout.reward)
    answers = Counter(text for f in finished if (text := last_text(f)) is not None)
    tool_calls = [count for f in finished if (count := count_tool_calls(f.spans)) is not None]
    metrics = {"rollout/tool_calls": float(np.mean(tool_calls))} if tool_calls else {}
    metrics |= {
        "rollout/same_answer": max(answers.values(), default=0) / max(1, len(finished)),
        "rollout/count": float(len(finished)),
        "rollout/unrewarded": float(sum(f.reward is None and f.rollout.status == "succeeded" for f in finished)),
        "rollout/failed": float(sum(f.rollout.status == "failed" for f in finished)),
        "rollout/retried": float(sum(f.attempts > 1 for f in finished)),
        "rollout/zeroed": float(sum(f.counts_as_zero for f in finished)),
        "rollout/over_budget": float(sum(f.over_budget is not None for f in finished)),
        "rollout/dropped": float(len(finished) - len(usable)),
        "rollout/calls_left_out": float(sum(f.calls_left_out for f in finished)),
    }
    groups = groups_of(finished, run.progress.step, run.models, run.settings)
    if len(groups) > 1:
        metrics |= reward_metrics(
            [f.reward or 0.0 for f in usable], [{} if f.counts_as_zero else f.dimensions for f in usable]
        )
        for adapter in groups:
            without_calls = sum(not f.records for f in rollouts_of(adapter, finished, run.models))
            metrics[f"{adapter}/rollout/without_calls"] = float(without_calls)
            unrewarded = sum(bool(f.records) and f.reward is None for f in rollouts_of(adapter, usable, run.models))
            if unrewarded:
                reason = f"no reward for {adapter!r}: all were given to other adapters by name"
                if run.causes.add(reason, unrewarded):
                    logger.warning("%d of %d rollouts not trained: %s", unrewarded, len(finished), reason)
                untrained[reason] = unrewarded
    return SampledStep(
        groups=groups,
        rows=rows,
        untrained=untrained,
        rollouts=len(finished),
        trainable=len(usable),
        mean_rewards={row: float(np.mean(values)) for row, values in rewards.items()},
        metrics=metrics,
    )


def _progress_notes(logger: MetricsLogger, name: str, total: int) -> Callable[[int], None]:
    """Return a callback for the number of rollouts that have ended since its last call; it notes the progress of a long
    step."""
    done, last = 0, time.monotonic()

    def on_progress(more: int) -> None:
        nonlocal done, last
        done += more
        now = time.monotonic()
        if now - last >= SECONDS_BETWEEN_NOTES:
            last = now
            logger.note(f"{name}: {done} of {total} rollouts")

    return on_progress


def as_zero(finished: FinishedRollout) -> FinishedRollout:
    """Count a rollout that failed after it had called the model as 0; a success without a reward never does."""
    if finished.rollout.status != "failed" or not finished.records:
        return finished
    return replace(finished, reward=0.0, counts_as_zero=True)


def tail_of(rollouts: Sequence[Rollout], elapsed: float) -> float:
    """Return the seconds in which at most an eighth of the rollouts (rounded down, but one at least) had not ended.

    A single rollout has no tail: no other one waited for it.

    Args:
        rollouts: those that were started together, all ended.
        elapsed: seconds from their start until all were seen to have ended. The times at which rollouts end are times
            of day, and somebody may set the clock meanwhile: no tail is longer than this.
    """
    ends = sorted(rollout.end_time for rollout in rollouts if rollout.end_time is not None)
    few = max(1, len(ends) // _TAIL_SHARE)
    if len(ends) <= few:
        return 0.0
    return min(elapsed, ends[-1] - ends[-1 - few])


class IdleSteps:
    """Counts the steps that taught nothing because the rollouts of each task had the same reward.

    Args:
        done: steps that the run had done before it was resumed; they are not looked at.
    """

    def __init__(self, done: int = 0) -> None:
        self._done = done
        self.causes: Counter[IdleCause] = Counter()
        self.steps = 0

    def after_step(self, metrics: Mapping[str, float]) -> str | None:
        """Return the message after a step: one for the first step that teaches nothing for a cause."""
        self.steps += 1
        reward = metrics.get("reward/mean")  # without it every rollout failed, and the log said why
        if reward is None or any(name.split("/")[-1] == "loss" for name in metrics):
            return None
        cause = idle_cause(reward, metrics.get("reward/std", 0.0))
        self.causes[cause] += 1
        if self.causes[cause] > 1:
            return None
        seen, advice = IDLE[cause]
        truncated = metrics.get("rollout/truncated", 0.0)
        if truncated >= _MANY_TRUNCATED and cause != "solved":
            advice = f"{percent(truncated, 0)} of the rollouts ended at `max_new_tokens`: raise it; else {advice}"
        return f"nothing to learn from in step {self._done + self.steps}: {seen.format(reward=reward)}: {advice}"

    def at_the_end(self) -> str | None:
        """Return the message after the last step."""
        if not self.causes:
            return None
        causes = self.causes.most_common()
        each = "; ".join(f"for {count} of them, {IDLE[cause][1]}" for cause, count in causes)
        advice = IDLE[causes[0][0]][1] if len(causes) == 1 else each
        return f"{self.causes.total()} of {counted(self.steps, 'step')} had nothing to learn from: {advice}"


class LostSteps:
    """Ends a run that only loses rollouts."""

    def __init__(self) -> None:
        self._steps = 0
        self._untrained: Counter[str] = Counter()

    def after_step(self, sampled: SampledStep) -> None:
        """Count the lost rollouts of a step.

        Raises:
            RunFailedError: no rollout of the last 3 steps or more could be trained, 24 rollouts or more.
        """
        if sampled.trainable:
            self._steps, self._untrained = 0, Counter()
            return
        self._steps += 1
        self._untrained.update(sampled.untrained)
        lost = self._untrained.total()
        if self._steps >= _HOPELESS_STEPS and lost >= _HOPELESS_ROLLOUTS:
            steps = latest(self._steps, "step")
            raise RunFailedError(f"{every(lost, 'rollout')} of {steps}", counted_causes(self._untrained).counts)


def untrained_in_all(rollouts: int, untrained: Mapping[str, int]) -> str | None:
    """Return how many rollouts of a run were not trained, and why most of them; None if all were."""
    causes = counted_causes(untrained)
    if not causes.counts:
        return None
    reason, count = causes.counts.most_common(1)[0]
    most = "" if len(causes.counts) == 1 else f"; {count} of them"
    return f"{causes.counts.total()} of {counted(rollouts, 'rollout')} were not trained{most}: {reason}"
