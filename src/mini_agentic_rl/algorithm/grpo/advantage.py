"""Advantages: how much better a rollout did than could be expected.

Expected is what the other rollouts of its task got, or what all rollouts of the batch did. Rewards are [G], one number
a rollout, or [G, C] where single calls have rewards of their own (`credit.stack`): the numbers of one column are
compared with each other. Shao et al. 2024 (section 4.1.3, process supervision) subtract one mean and divide by one
standard deviation over all step rewards of the group. Here the standard deviation is one for the group as well, so that
a turn that matters little stays small, but the mean is that of the turn (as Zeng et al. 2025, arXiv:2505.11821, do per
turn): with one mean for all, a turn that always earns more than another would be reinforced though every rollout earned
it alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from ..loop.settings import Baseline, Normalization
from ..losses.base import Floats
from .maxrl import over_mean

Advantage = Callable[[Floats], Floats]
"""Rewards [G] or [G, C] of one group in, advantages of the same shape out."""

EPSILON = 1e-6
"""Keeps the division by the standard deviation finite (1e-4 in some implementations)."""


def group_normalized(rewards: Floats) -> Floats:
    """Return (r - mean) / std over the group (GRPO; Shao et al. 2024, section 4.1.2). Zeros when all rewards are equal.

    For [G, C]: std is the root mean square over all entries of what is left after each column's mean was subtracted.
    """
    return over_deviation(group_centred(rewards), rewards)


def group_centred(rewards: Floats) -> Floats:
    """Return r - mean over the group: without the standard deviation, easy and hard tasks weigh alike (Dr. GRPO;
    Liu et al. 2025, section 3.2). For [G, C] each column has its own mean."""
    centred = rewards - rewards.mean(axis=0)
    return np.asarray(np.where(np.ptp(rewards, axis=0) > 0, centred, 0.0))


def leave_one_out(rewards: Floats) -> Floats:
    """Return r_i - 1/(G-1) sum over j != i of r_j (RLOO; Kool et al. 2019, Ahmadian et al. 2024, arXiv:2402.14740).

    As a rollout's own reward is not part of its baseline, the policy gradient is unbiased. It is G/(G-1) times what
    `group_centred` gives. Zeros for a single rollout, which has no others.
    """
    size = rewards.shape[0]
    return np.asarray(group_centred(rewards) * (size / max(1, size - 1)))


def uncompared(rewards: Floats) -> Floats:
    """Return the rewards themselves (REINFORCE without a baseline; REINFORCE++ normalises them over the batch)."""
    return rewards


def over_deviation(centred: Floats, rewards: Floats) -> Floats:
    """Return `centred` over the standard deviation of the group's rewards; for [G, C] one for all columns."""
    if not np.any(centred):
        return centred
    return np.asarray(centred / (np.sqrt(rewards.var(axis=0).mean()) + EPSILON))


def as_they_are(centred: Floats, rewards: Floats) -> Floats:
    """Return `centred`: what divides it, if anything does, is not the group's to say."""
    return centred


BASELINES: Mapping[Baseline, Advantage] = {
    "group": group_centred,
    "leave_one_out": leave_one_out,
    "none": uncompared,
}
"""Functions that return what is taken off a reward, by the setting `baseline`."""

SCALES: Mapping[Normalization, Callable[[Floats, Floats], Floats]] = {
    "group": over_deviation,
    "mean": over_mean,
    "batch": as_they_are,
}
"""Functions that return the divisor within a group, by the setting `advantage_normalization`."""


def advantage_of(baseline: Baseline, normalization: Normalization | None) -> Advantage:
    """Return the advantage of a baseline, and of what divides it within the group; None divides by nothing."""
    compare = BASELINES[baseline]
    if normalization is None or (baseline == "none" and normalization == "group"):
        return compare  # without a baseline a standard deviation around the mean is of nothing that is trained with
    scale = SCALES[normalization]
    return lambda rewards: scale(compare(rewards), rewards)


def batch_normalized(advantages_S: Floats, weights_S: Floats) -> Floats:
    """Return (A - mean) / std over all terms of the batch (global advantage normalisation of REINFORCE++; Hu et al.
    2025, arXiv:2501.03262): A_norm = (A - mean(A)) / std(A), with A over the tokens of the batch.

    The mean is the one that the loss takes: `weights_S` are its weights [S], all alike when it averages over tokens.
    Zeros when all advantages are equal.
    """
    weight_S = weights_S / weights_S.sum()
    centred_S = advantages_S - (weight_S * advantages_S).sum()
    if np.ptp(advantages_S) == 0:
        return np.zeros_like(advantages_S)
    return np.asarray(centred_S / (np.sqrt((weight_S * centred_S**2).sum()) + EPSILON))
