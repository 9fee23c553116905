"""`token`: truncated importance sampling of each token (Yao et al. 2025, "Your efficient RL framework secretly brings
you off-policy RL training"; the truncation is that of Ionides 2008).

    c = min(k, C)

It has a lower variance than the form for whole rollouts, and is biased: it leaves out how the earlier tokens came
about.
"""

from __future__ import annotations

import numpy as np

from ..base import Floats, Ints
from .base import Correction, WeightBounds


def truncated(log_ratio_S: Floats, trajectory_S: Ints, bounds: WeightBounds) -> Floats:
    """Return min(k, C) of each term [S]."""
    return np.exp(np.minimum(log_ratio_S, np.log(bounds.high)))


CORRECTION = Correction(truncated)
