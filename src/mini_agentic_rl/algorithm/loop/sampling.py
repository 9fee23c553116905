"""Sampling of one step: the tasks of the step as groups of rollouts, and what becomes of those that fail."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...adapter import TracerTraceToTriplet, TrainedCalls, count_tool_calls
from ...logging import CountedCauses
from ...semconv import SAMPLING_SEED
from ...types import Dataset, EnqueueRolloutRequest, Rollout
from ..answers import same_answer_share
from ..base import AlgorithmContext
from ..rollouts import FinishedRollout, count_untrainable, rollout_config, run_rollouts
from ..seeds import derive_seed
from .adapters import by_adapter
from .curriculum import TaskSource
from .groups import Group
from .settings import LoopSettings

SECONDS_BETWEEN_NOTES = 60.0
"""A step whose rollouts take longer says so often how many have ended."""
_TAIL_SHARE = 8
"""The tail of a step is the time of the last of so many rollouts."""


@dataclass(frozen=True)
class SampledStep:
    """Everything that one step sampled."""

    groups: Mapping[str, Sequence[Group]]
    """By adapter: one a task, with the rollouts that can be trained."""
    untrained: dict[str, int]
    """Rollouts that gave nothing to train on, by reason."""
    rollouts: int
    """Number of rollouts."""
    trainable: int
    """Number of those that can be trained."""
    mean_rewards: Mapping[int, float]
    """Of the rollouts of each task that have a reward, by its row."""
    metrics: dict[str, float]
    """Numbers of rollouts that have no reward, failed, were tried again, count as 0, wanted more LLM calls or tokens
    than they may have, or are left out; how many calls are not trained, and how many called tools. With several
    adapters also the rewards, and for each adapter how many rollouts did not call it."""
    tail_seconds: float
    """Cost of waiting for its slowest rollouts (`tail_of`), added up over the rounds."""


def trained_calls(context: AlgorithmContext, models: Collection[str]) -> TrainedCalls:
    """Return which calls train the policy that is served under the names `models`: its own, under the filters of the
    agent and the adapter."""
    adapter = context.adapter
    filters = {
        "trained_agents": context.trained_agents,
        "agent_match": adapter.agent_match if isinstance(adapter, TracerTraceToTriplet) else None,
    }
    agents = {setting: pattern for setting, pattern in filters.items() if pattern is not None}
    return TrainedCalls(agents=agents, models=frozenset(models))


def training_request(
    settings: LoopSettings, task: Any, resources_id: str, *, step: int, group: str, seed: int, **metadata: Any
) -> EnqueueRolloutRequest:
    """Return the request for a training rollout of a task, with further `metadata`."""
    return EnqueueRolloutRequest(
        input=task,
        mode="train",
        resources_id=resources_id,
        config=rollout_config(settings.rollout_timeout, settings.on_failure, settings.max_attempts),
        metadata={"step": step, "group": group, SAMPLING_SEED: seed, **metadata},
    )


async def sample_groups(
    context: AlgorithmContext,
    settings: LoopSettings,
    dataset: Dataset[Any],
    *,
    tasks: TaskSource,
    resources_id: str,
    models: Mapping[str, str],
    has_signal: Callable[[Group], bool],
    causes: CountedCauses,
) -> SampledStep:
    """Run the rollouts of a step: once, or with `dynamic_sampling` in rounds, each of as many tasks as groups with a
    signal are missing.

    Args:
        models: the adapter that learns from calls to each model, by the names of the models.
        has_signal: tells if a group teaches an adapter anything.
        causes: why rollouts of the run were not trained so far; only new ones are logged.
    """
    finished: list[FinishedRollout] = []
    rounds, missing, tail = 0, settings.tasks_per_step, 0.0
    while True:
        begin = len(tasks.drawn)
        requests = [
            training_request(
                settings,
                dataset[row],
                resources_id,
                step=tasks.step,
                group=f"{tasks.step}/{index}",
                seed=derive_seed(settings.seed, "rollout", tasks.step, index, sample),
            )
            for index, row in enumerate(tasks.draw(missing), begin)
            for sample in range(settings.samples_per_prompt)
        ]
        on_progress = _notes(context, f"step {tasks.step + 1}", len(requests))
        started = time.perf_counter()
        found = await run_rollouts(context.store, requests, on_progress, trained_calls(context, models))
        tail += tail_of([f.rollout for f in found], time.perf_counter() - started)
        finished += [as_zero(f) for f in found] if settings.on_failure == "zero" else found
        groups, unrewarded, of_adapters = by_adapter(finished, tasks.step, models, settings, causes)
        rounds += 1
        signals = [map(has_signal, of_adapter) for of_adapter in groups.values()]
        missing = settings.tasks_per_step - sum(map(any, zip(*signals, strict=True)))
        if not settings.dynamic_sampling or missing <= 0 or rounds == settings.max_sampling_rounds:
            break
    return SampledStep(
        groups=groups,
        untrained=dict(count_untrainable(finished, causes=causes) + unrewarded),
        rollouts=len(finished),
        trainable=sum(f.untrainable is None for f in finished),
        mean_rewards=mean_rewards(finished, tasks.drawn, settings.samples_per_prompt),
        metrics=metrics_of(finished)
        | ({"sampling/rounds": float(rounds)} if settings.dynamic_sampling else {})
        | of_adapters,
        tail_seconds=tail,
    )


def metrics_of(finished: Sequence[FinishedRollout]) -> dict[str, float]:
    """Return metrics about what became of some rollouts."""
    return tool_metrics(finished) | {
        "rollout/same_answer": same_answer_share(finished),
        "rollout/count": float(len(finished)),
        "rollout/unrewarded": float(sum(f.reward is None and f.rollout.status == "succeeded" for f in finished)),
        "rollout/failed": float(sum(f.rollout.status == "failed" for f in finished)),
        "rollout/retried": float(sum(f.attempts > 1 for f in finished)),
        "rollout/zeroed": float(sum(f.counts_as_zero for f in finished)),
        "rollout/over_budget": float(sum(f.over_budget is not None for f in finished)),
        "rollout/dropped": float(sum(f.untrainable is not None for f in finished)),
        "rollout/calls_left_out": float(sum(f.calls_left_out for f in finished)),
    }


def tool_metrics(finished: Sequence[FinishedRollout]) -> dict[str, float]:
    """Return the mean number of LLM calls that were answered by a tool call, over the rollouts that offered tools;
    nothing where none did."""
    calls = [count for one in finished if (count := count_tool_calls(one.spans)) is not None]
    return {"rollout/tool_calls": float(np.mean(calls))} if calls else {}


def _notes(context: AlgorithmContext, name: str, total: int) -> Callable[[int], None]:
    """Return what hears how many more rollouts have ended, and tells it of a step that takes long."""
    done, last = 0, time.monotonic()

    def on_progress(more: int) -> None:
        nonlocal done, last
        done += more
        now = time.monotonic()
        if now - last >= SECONDS_BETWEEN_NOTES:
            last = now
            context.logger.note(f"{name}: {done} of {total} rollouts")

    return on_progress


def mean_rewards(finished: Sequence[FinishedRollout], rows: Sequence[int], size: int) -> dict[int, float]:
    """Return the mean reward of each row, over the rollouts that can be trained. `finished` holds `size` of each."""
    found: dict[int, list[float]] = {}
    for index, row in enumerate(rows):
        usable = (f for f in finished[index * size : (index + 1) * size] if f.untrainable is None)
        found.setdefault(row, []).extend(f.reward for f in usable if f.reward is not None)
    return {row: float(np.mean(rewards)) for row, rewards in found.items() if rewards}


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
