"""Advantages of maximum-likelihood reinforcement learning (MaxRL; Tajwar, Zeng et al. 2026, arXiv:2602.02710,
algorithm 1).

    A_i = (r_i - mean(r)) / mean(r),    0 where the mean is 0

Of N rollouts with rewards of 0 or 1, the mean of A times the gradient of log pi estimates the gradient of log p, p
being the probability of success, up to the terms of order N in 1 - p, where the policy gradient estimates that of p
itself. A task that is solved once in N tries so weighs as much as one that is always about to be: hard tasks weigh more
than where a standard deviation divides.

The paper means rewards of 0 and 1. For others it is what it says: a reward is compared with the mean. As long as none
is negative no A is above N. Where some are (a penalty was taken off), A is cut off at N and -N, and a mean that is not
positive leaves nothing to learn. Without a baseline A is r / mean(r): the mean of the gradients over the successes
(theorem 2).
"""

from __future__ import annotations

import numpy as np

from ..losses.base import Floats


def over_mean(centred: Floats, rewards: Floats) -> Floats:
    """Return `centred`, which was made of `rewards`, over the mean of the group's rewards; for [G, C] one mean for all
    columns, as with the standard deviation: a turn that matters little stays small."""
    mean = float(rewards.mean())
    if mean <= 0:
        return np.zeros_like(centred)
    return np.asarray(np.clip(centred / mean, -rewards.size, rewards.size))
