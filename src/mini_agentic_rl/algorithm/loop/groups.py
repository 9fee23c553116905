"""The rollouts of a step, as an update takes them: the trajectories of a task as one group, and metrics about them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ...tokens import CompletionRecord
from ..losses.base import Floats
from .credit import Credit, Rewards, broadcast, stack


@dataclass(frozen=True)
class Trajectory:
    """The samples of one rollout, and what they were worth."""

    rollout_id: str
    records: Sequence[CompletionRecord]
    reward: float
    """Its final reward."""
    credit: Credit | None = None
    """Number that each record is trained with; None trains all with the final reward."""
    rewards: Rewards | None = None
    """The rewards that `credit` was made of, for an algorithm that spreads them over time itself; None where only the
    final one is known."""
    dimensions: Mapping[str, float] = field(default_factory=dict)
    """The final reward by its names, where it has several."""
    feedback: str = ""
    """Last annotation `feedback` of its attempt, in words; empty when nothing was said."""

    @property
    def credited(self) -> Credit:
        """`credit`, or the final reward for every record where there is none."""
        return broadcast(self.records, self.reward) if self.credit is None else self.credit

    @property
    def sampled_tokens(self) -> int:
        """All that its calls sampled, forced tokens included."""
        return sum(record.output_ids.size for record in self.records)

    @property
    def trained_tokens(self) -> int:
        """Sampled tokens of the records that the credit reaches, without the forced ones."""
        columns = self.credited.column_R
        return sum(record.trained_tokens for record, c in zip(self.records, columns, strict=True) if c >= 0)

    @property
    def truncated(self) -> bool:
        """True if its last call ended at a length bound."""
        return bool(self.records) and self.records[-1].finish_reason == "length"


@dataclass(frozen=True)
class Group:
    """The rollouts of one task."""

    task_id: str
    trajectories: Sequence[Trajectory]
    is_prefixed: bool = False
    """True if its rollouts began with the calls of an expert, so that their rewards are not the policy's alone."""

    @property
    def rewards(self) -> Floats:
        """Final rewards [G]."""
        return np.array([trajectory.reward for trajectory in self.trajectories], np.float64)

    @property
    def credits(self) -> Floats:
        """Numbers that are compared within the group: [G], or [G, C] where single calls have rewards of their own."""
        if not self.trajectories:
            return np.empty(0, np.float64)
        return stack([trajectory.credited for trajectory in self.trajectories])


def has_signal(rewards: Floats) -> bool:
    """Return True if the rewards of a group differ; equal ones carry no gradient."""
    return rewards.shape[0] > 1 and bool(np.any(np.ptp(rewards, axis=0) > 0))


def group_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """Return metrics about what was sampled, without rollouts that began with the calls of an expert."""
    groups = [group for group in groups if not group.is_prefixed]
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    metrics = {
        "groups/count": float(len(groups)),
        "groups/with_signal": float(sum(has_signal(group.credits) for group in groups)),
    }
    if trajectories:
        metrics |= reward_metrics([t.reward for t in trajectories], [t.dimensions for t in trajectories])
        metrics |= {
            "rollout/sampled_tokens": float(np.mean([t.sampled_tokens for t in trajectories])),
            "rollout/calls": float(np.mean([len(t.records) for t in trajectories])),
            "rollout/truncated": float(np.mean([t.truncated for t in trajectories])),
        }
    return {name: value for name, value in metrics.items() if math.isfinite(value)}


def reward_metrics(rewards: Sequence[float], dimensions: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return metrics about the final rewards of some rollouts, and the mean of each name of those with several."""
    if not rewards:
        return {}
    by_name: dict[str, list[float]] = {}
    for named in dimensions:
        if len(named) > 1:
            for name, value in named.items():
                by_name.setdefault(name, []).append(value)
    metrics = {"reward/mean": float(np.mean(rewards)), "reward/std": float(np.std(rewards))}
    return metrics | {f"reward/{name}/mean": float(np.mean(values)) for name, values in by_name.items()}
