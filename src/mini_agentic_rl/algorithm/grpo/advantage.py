"""Group-relative advantages: how much better a rollout did than the other rollouts of its task."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

Advantage = Callable[[Floats], Floats]
"""Rewards [G] of one group in, advantages [G] out."""

EPSILON = 1e-6
"""Keeps the division by the standard deviation finite (1e-4 in some implementations)."""


def group_normalized(rewards_G: Floats) -> Floats:
    """(r - mean) / std over the group (GRPO; Shao et al. 2024, section 4.1.2). Zeros when all rewards are equal."""
    centred = group_centred(rewards_G)
    if not np.any(centred):
        return centred
    return np.asarray(centred / (rewards_G.std() + EPSILON))


def group_centred(rewards_G: Floats) -> Floats:
    """r - mean over the group: without the standard deviation, easy and hard tasks weigh alike (Dr. GRPO;
    Liu et al. 2025, section 3.2)."""
    return np.asarray(rewards_G - rewards_G.mean())


def has_signal(rewards_G: Floats) -> bool:
    """Whether the rewards of a group differ; equal ones carry no gradient."""
    return rewards_G.size > 1 and bool(np.ptp(rewards_G) > 0)
