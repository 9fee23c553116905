"""Group-relative advantages: how much better a rollout did than the other rollouts of its task.

Rewards are [G], one number a rollout, or [G, C] where single calls have rewards of their own (`credit.stack`): the
numbers of one column are compared with each other. Shao et al. 2024 (section 4.1.3, process supervision) subtract one
mean and divide by one standard deviation over all step rewards of the group. Here the standard deviation is one for the
group as well, so that a turn that matters little stays small, but the mean is that of the turn (as Zeng et al. 2025,
arXiv:2505.11821, do per turn): with one mean for all, a turn that always earns more than another would be reinforced
though every rollout earned it alike.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

Advantage = Callable[[Floats], Floats]
"""Rewards [G] or [G, C] of one group in, advantages of the same shape out."""

EPSILON = 1e-6
"""Keeps the division by the standard deviation finite (1e-4 in some implementations)."""


def group_normalized(rewards: Floats) -> Floats:
    """(r - mean) / std over the group (GRPO; Shao et al. 2024, section 4.1.2). Zeros when all rewards are equal.

    For [G, C]: std is the root mean square over all entries of what is left after each column's mean was subtracted.
    """
    centred = group_centred(rewards)
    if not np.any(centred):
        return centred
    return np.asarray(centred / (np.sqrt(rewards.var(axis=0).mean()) + EPSILON))


def group_centred(rewards: Floats) -> Floats:
    """r - mean over the group: without the standard deviation, easy and hard tasks weigh alike (Dr. GRPO;
    Liu et al. 2025, section 3.2). For [G, C] each column has its own mean."""
    centred = rewards - rewards.mean(axis=0)
    return np.asarray(np.where(np.ptp(rewards, axis=0) > 0, centred, 0.0))


def has_signal(rewards: Floats) -> bool:
    """Whether the rewards of a group differ; equal ones carry no gradient."""
    return rewards.shape[0] > 1 and bool(np.any(np.ptp(rewards, axis=0) > 0))
