"""`icepop`: tokens on which sampler and learner disagree are masked, on both sides (IcePop; Ling team 2025, "Small leak
can sink a great ship: boost RL training on MoE with IcePop", and the Ring-1T report, arXiv:2510.18855).

    c = k    alpha <= k <= beta
    c = 0    elsewhere

with alpha the setting `importance_floor` and beta `importance_cap` (0.5 and 5 in the report). Nothing is divided by the
number of tokens that are left: a masked token counts in the length of its rollout.
"""

from __future__ import annotations

import numpy as np

from ..base import Floats, Ints
from .base import Correction, WeightBounds


def masked(log_ratio_S: Floats, trajectory_S: Ints, bounds: WeightBounds) -> Floats:
    """Return k of each term [S], 0 where it is out of bounds."""
    # A ratio that is far out of bounds may be no number any more; it is cut off before it is compared.
    ratio_S = np.exp(np.minimum(log_ratio_S, np.log(bounds.high) + 1))
    return np.where((ratio_S >= bounds.low) & (ratio_S <= bounds.high), ratio_S, 0.0)


CORRECTION = Correction(masked)
