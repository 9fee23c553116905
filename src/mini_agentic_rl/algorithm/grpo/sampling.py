"""One step's sampling: the tasks of the step as groups of rollouts, and what becomes of those that fail."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...adapter import TracerTraceToTriplet, TrainedCalls
from ...types import Dataset, EnqueueRolloutRequest, RolloutConfig
from ..base import AlgorithmContext
from ..rollouts import FinishedRollout, count_untrainable, run_rollouts
from ..seeds import derive_seed, tasks_of_step
from .batch import Group
from .settings import GRPOSettings
from .shares import by_adapter


@dataclass(frozen=True)
class Sampled:
    """What one step sampled."""

    groups: Mapping[str, Sequence[Group]]
    """By adapter: one a task, with the rollouts that can be trained."""
    untrained: dict[str, int]
    """Rollouts that gave nothing to train on, by reason."""
    figures: dict[str, float]
    """How many rollouts failed, were tried again, count as 0, wanted more LLM calls or tokens than they may have, or
    are left out; how many calls are not trained. With several adapters also the rewards, and for each adapter how many
    rollouts did not call it."""


def trained_calls(context: AlgorithmContext, models: Collection[str]) -> TrainedCalls:
    """Which calls train the policy that is served under the names `models`: its own, under the filters of the agent
    and the adapter."""
    adapter = context.adapter
    filters = {
        "trained_agents": context.trained_agents,
        "agent_match": adapter.agent_match if isinstance(adapter, TracerTraceToTriplet) else None,
    }
    agents = {setting: pattern for setting, pattern in filters.items() if pattern is not None}
    return TrainedCalls(agents=agents, models=frozenset(models))


async def sample_groups(
    context: AlgorithmContext,
    settings: GRPOSettings,
    dataset: Dataset[Any],
    *,
    step: int,
    resources_id: str,
    models: Mapping[str, str],
) -> Sampled:
    """Run the rollouts of step number `step`, from 0.

    Args:
        models: the adapter that learns from calls to each model, by the names of the models.
    """
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
    finished = await run_rollouts(context.store, requests, lambda _: None, trained_calls(context, models))
    failed = sum(f.rollout.status == "failed" for f in finished)
    if settings.on_failure == "zero":
        finished = [_as_zero(f) for f in finished]
    groups, unrewarded, shares = by_adapter(finished, step, models, settings)
    return Sampled(
        groups=groups,
        untrained=dict(count_untrainable(finished) + unrewarded),
        figures={
            "rollout/failed": float(failed),
            "rollout/retried": float(sum(f.attempts > 1 for f in finished)),
            "rollout/zeroed": float(sum(f.counts_as_zero for f in finished)),
            "rollout/over_budget": float(sum(f.over_budget is not None for f in finished)),
            "rollout/dropped": float(sum(f.untrainable is not None for f in finished)),
            "rollout/calls_left_out": float(sum(f.calls_left_out for f in finished)),
        }
        | shares,
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
