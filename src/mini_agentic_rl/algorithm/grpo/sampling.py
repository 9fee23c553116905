"""One step's sampling: the tasks of the step as groups of rollouts, and what becomes of those that fail."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...adapter import TracerTraceToTriplet, TrainedCalls
from ...policy import DEFAULT_ADAPTER
from ...types import Dataset, EnqueueRolloutRequest, RolloutConfig
from ..base import AlgorithmContext
from ..rollouts import FinishedRollout, count_untrainable, run_rollouts
from ..seeds import derive_seed, tasks_of_step
from .batch import Group, Trajectory
from .credit import assign, read_rewards
from .settings import GRPOSettings


@dataclass(frozen=True)
class Sampled:
    """What one step sampled."""

    groups: Sequence[Group]
    """One a task, with the rollouts that can be trained."""
    untrained: dict[str, int]
    """Rollouts that gave nothing to train on, by reason."""
    figures: dict[str, float]
    """How many rollouts failed, were tried again, count as 0 or are left out; how many calls are not trained."""


def trained_calls(context: AlgorithmContext, model: str) -> TrainedCalls:
    """Which calls train the policy that is served as `model`: its own, under the filters of the agent and the
    adapter."""
    adapter = context.adapter
    filters = {
        "trained_agents": context.trained_agents,
        "agent_match": adapter.agent_match if isinstance(adapter, TracerTraceToTriplet) else None,
    }
    agents = {setting: pattern for setting, pattern in filters.items() if pattern is not None}
    return TrainedCalls(agents=agents, models=frozenset({model, DEFAULT_ADAPTER}))


async def sample_groups(
    context: AlgorithmContext,
    settings: GRPOSettings,
    dataset: Dataset[Any],
    *,
    step: int,
    resources_id: str,
    trained: TrainedCalls,
) -> Sampled:
    """Run the rollouts of step number `step`, from 0."""
    rows = tasks_of_step(settings.seed, len(dataset), step, settings.tasks_per_step)
    requests = [
        EnqueueRolloutRequest(
            input=dataset[row],
            mode="train",
            resources_id=resources_id,
            config=_config(settings),
            metadata={
                "step": step,
                "group": f"{step}/{index}",
                "sampling_seed": derive_seed(settings.seed, "rollout", step, index, sample),
            },
        )
        for index, row in enumerate(rows)
        for sample in range(settings.samples_per_prompt)
    ]
    finished = await run_rollouts(context.store, requests, lambda _: None, trained)
    failed = sum(f.rollout.status == "failed" for f in finished)
    if settings.on_failure == "zero":
        finished = [_as_zero(f) for f in finished]
    size = settings.samples_per_prompt
    return Sampled(
        groups=[_group(f"{step}/{i}", finished[i * size : (i + 1) * size], settings) for i in range(len(rows))],
        untrained=dict(count_untrainable(finished)),
        figures={
            "rollout/failed": float(failed),
            "rollout/retried": float(sum(f.attempts > 1 for f in finished)),
            "rollout/zeroed": float(sum(f.counts_as_zero for f in finished)),
            "rollout/dropped": float(sum(f.untrainable is not None for f in finished)),
            "rollout/calls_left_out": float(sum(f.calls_left_out for f in finished)),
        },
    )


def _config(settings: GRPOSettings) -> RolloutConfig:
    if settings.on_failure != "retry":
        return RolloutConfig(timeout_seconds=settings.rollout_timeout)
    return RolloutConfig(
        timeout_seconds=settings.rollout_timeout,
        max_attempts=settings.max_attempts,
        retry_condition=["failed", "timeout", "unresponsive"],
    )


def _as_zero(finished: FinishedRollout) -> FinishedRollout:
    """A rollout that failed after it had called the model counts as 0; a rewardless success never does."""
    if finished.rollout.status != "failed" or not finished.records:
        return finished
    return replace(finished, reward=0.0, counts_as_zero=True)


def _group(task_id: str, finished: Sequence[FinishedRollout], settings: GRPOSettings) -> Group:
    """The rollouts of one task that can be trained."""
    usable = [(f, f.reward) for f in finished if f.untrainable is None and f.reward is not None]
    return Group(task_id, [_trajectory(f, reward, settings) for f, reward in usable])


def _trajectory(finished: FinishedRollout, reward: float, settings: GRPOSettings) -> Trajectory:
    records = finished.records
    # A failed rollout's own rewards, those of its turns too, count for nothing.
    rewards = read_rewards(() if finished.counts_as_zero else finished.spans, records, reward)
    return Trajectory(
        finished.rollout.rollout_id,
        records,
        reward,
        credit=assign(settings.credit, records, rewards, discount=settings.credit_discount),
        dimensions={} if finished.counts_as_zero else finished.dimensions,
    )
