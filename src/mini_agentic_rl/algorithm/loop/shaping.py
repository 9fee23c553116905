"""Penalties on a rollout's reward before it is compared: for being too long, for being far from the reference.

A penalty is on the rollout as a whole: every number that its calls are trained with is less by it. Rewards that are
reported stay as they were given.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ...policy import Learner
from ...tokens import PackedTrees, TokenTree, pack
from ..losses.base import Floats
from .credit import Credit
from .groups import Group, Trajectory


def soft_overlong(length: int, max_length: int, buffer: int) -> float:
    """Return the soft overlong punishment of DAPO (Yu et al. 2025, equation 13), from 0 to -1, for a reply of |y|
    tokens:

        0                                      |y| <= L_max - L_cache
        ((L_max - L_cache) - |y|) / L_cache    L_max - L_cache < |y| <= L_max
        -1                                     L_max < |y|

    Args:
        length: |y|.
        max_length: L_max.
        buffer: L_cache; 0 punishes only what is longer than `max_length`.
    """
    if length > max_length:
        return -1.0
    return min(0.0, (max_length - buffer - length) / buffer) if buffer > 0 else 0.0


def overlong_penalty(trajectory: Trajectory, max_new_tokens: int, buffer_share: float) -> float:
    """Return `soft_overlong` of the longest call of a rollout, with L_max the bound of a call and L_cache a share of
    it."""
    longest = max((record.output_ids.size for record in trajectory.records), default=0)
    return soft_overlong(longest, max_new_tokens, round(buffer_share * max_new_tokens))


def lowered(trajectory: Trajectory, penalty: float) -> Trajectory:
    """Return the trajectory with all that it is trained with less by `penalty`."""
    if penalty == 0:
        return trajectory
    credit = trajectory.credited
    return replace(trajectory, credit=Credit(credit.values_C - penalty, credit.column_R))


def with_overlong_penalty(
    groups: Sequence[Group], max_new_tokens: int, buffer_share: float, weight: float
) -> list[Group]:
    """Return the groups with each trajectory's `overlong_penalty`, times `weight`, in what it is trained with."""
    return [
        replace(
            group,
            trajectories=[
                lowered(t, -weight * overlong_penalty(t, max_new_tokens, buffer_share)) for t in group.trajectories
            ],
        )
        for group in groups
    ]


def with_kl_penalty(groups: Sequence[Group], learner: Learner, coef: float) -> tuple[list[Group], float]:
    """The groups with beta times the sum of k1 over a trajectory's tokens taken off what it is trained with:
    R - beta log(pi(y) / pi_ref(y)) (RLOO; Ahmadian et al. 2024, section 2); and the mean of k1. On the torch thread.

    pi is the sampler's record; pi_ref is computed here.
    """
    tree, count = TokenTree(), 0
    numbers: dict[tuple[int, int], int] = {}
    for g, group in enumerate(groups):
        for t, trajectory in enumerate(group.trajectories):
            if trajectory.trained_tokens == 0:
                continue
            numbers[g, t] = count
            for record, column in zip(trajectory.records, trajectory.credited.column_R, strict=True):
                if column >= 0:
                    tree.insert(record, count)
            count += 1
    if not numbers:
        return list(groups), 0.0
    packed = pack([tree])
    k1_S = k1(packed, learner)
    totals = np.bincount(packed.trajectory_S, weights=k1_S)
    penalised = [
        replace(
            group,
            trajectories=[
                lowered(trajectory, coef * float(totals[numbers[g, t]]) if (g, t) in numbers else 0.0)
                for t, trajectory in enumerate(group.trajectories)
            ],
        )
        for g, group in enumerate(groups)
    ]
    return penalised, float(k1_S.mean())


def k1(packed: PackedTrees, learner: Learner) -> Floats:
    """Return log pi - log pi_ref of each term [S], pi being what the sampler recorded. On the torch thread."""
    reference_S = learner.logprobs(packed, reference=True).double().cpu().numpy()
    difference: Floats = packed.behaviour_logprobs_S.astype(np.float64) - reference_S
    return difference
