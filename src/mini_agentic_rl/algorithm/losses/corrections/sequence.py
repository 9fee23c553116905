"""`sequence`: truncated importance sampling of whole rollouts (Yao et al. 2025, as for `token`).

    c = min(product of k over the rollout's tokens, C)

It is unbiased up to the truncation.
"""

from __future__ import annotations

from ..base import Floats, Ints, trajectory_sum
from .base import Correction, WeightBounds
from .token import truncated


def truncated_product(log_ratio_S: Floats, trajectory_S: Ints, bounds: WeightBounds) -> Floats:
    """Return min(product of k over the term's trajectory, C) at each term [S]."""
    return truncated(trajectory_sum(log_ratio_S, trajectory_S), trajectory_S, bounds)


CORRECTION = Correction(truncated_product, over_rollouts=True)
