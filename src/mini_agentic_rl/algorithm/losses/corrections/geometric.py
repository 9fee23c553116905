"""`geometric`: whole rollouts on which sampler and learner disagree are masked (Liu, Li et al. 2025, "When speed kills
stability: demystifying RL collapse from the training-inference mismatch"; the mean is that of GSPO, Zheng et al. 2025,
arXiv:2507.18071, equation 5).

    c = 1    low <= (product of k over the rollout's T tokens)^(1/T) <= high
    c = 0    elsewhere

The geometric mean does not shrink or grow with the length of a rollout as the product does, so one pair of bounds is
right for short and long ones. It is near 1 where a single k is not: bounds are narrow (0.99 and 1.01).
"""

from __future__ import annotations

import numpy as np

from ..base import Floats, Ints, trajectory_sum
from .base import Correction, WeightBounds


def geometric_mask(log_ratio_S: Floats, trajectory_S: Ints, bounds: WeightBounds) -> Floats:
    """Return 1 at each term [S] of a trajectory whose geometric mean of k is within the bounds, else 0."""
    lengths_S = trajectory_sum(np.ones_like(log_ratio_S), trajectory_S)
    mean_S = trajectory_sum(log_ratio_S, trajectory_S) / lengths_S
    with np.errstate(divide="ignore"):  # a floor of 0 is no bound
        low, high = np.log(bounds.low), np.log(bounds.high)
    return np.where((mean_S >= low) & (mean_S <= high), 1.0, 0.0)


CORRECTION = Correction(geometric_mask, over_rollouts=True)
