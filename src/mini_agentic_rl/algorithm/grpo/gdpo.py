"""Several rewards, each compared by itself (GDPO; Liu et al. 2026, arXiv:2601.05242, equations 4 to 6).

    A_k  = (r_k - mean of r_k over the group) / std of r_k over the group    for each reward k
    A    = sum over k of w_k A_k
    A'   = (A - mean of A over the batch) / std of A over the batch

Where rewards are summed first, a group in which they differ in different ways looks alike: 0 + 1 and 1 + 0 are one
number. Here each has its say in units of its own spread. The last line is `advantage_normalization=batch`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ...errors import UserError
from ..loop.credit import Credit
from ..loop.groups import Group, Trajectory
from ..losses.base import Floats
from .advantage import group_normalized

ALL = "all"
"""Stands for every name that the rewards of a step have."""


def separate_advantages(rewards_GK: Floats, weights_K: Floats) -> Floats:
    """Return A [G] of the rollouts of one group, from their rewards [G, K]."""
    columns = [group_normalized(rewards_GK[:, k]) for k in range(rewards_GK.shape[1])]
    return np.asarray(np.stack(columns, axis=1) @ weights_K)


def with_separate_rewards(groups: Sequence[Group], names: Sequence[str], weights: Sequence[float]) -> list[Group]:
    """Return the groups with A in place of what their rollouts are trained with. A reward that a rollout has not is 0,
    as one that failed has none.

    Args:
        names: the rewards, or `ALL`.
        weights: w; empty weighs all alike.

    Raises:
        UserError: rollouts have rewards, and none has one of these names.
    """
    given = list(dict.fromkeys(n for group in groups for t in group.trajectories for n in t.dimensions))
    if ALL in names:
        names, weights = given, ()
    unknown = [name for name in names if name not in given]
    if given and unknown:
        raise UserError(
            f"no rollout of this step has a reward of the name {unknown[0]!r}; there are: {', '.join(given)}",
            setting="separate_rewards",
        )
    weights_K = np.array(list(weights) or [1.0] * len(names), np.float64)
    found = []
    for group in groups:
        rewards_GK = np.array([[t.dimensions.get(name, 0.0) for name in names] for t in group.trajectories])
        if not group.trajectories or not names:
            found.append(group)
            continue
        advantages_G = separate_advantages(rewards_GK, weights_K)
        pairs = zip(group.trajectories, advantages_G, strict=True)
        found.append(replace(group, trajectories=[_credited(t, float(value)) for t, value in pairs]))
    return found


def _credited(trajectory: Trajectory, value: float) -> Trajectory:
    return replace(trajectory, credit=Credit(np.array([value], np.float64), trajectory.credited.column_R))
