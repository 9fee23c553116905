"""Several scores in one reward."""

from __future__ import annotations

import math
from collections.abc import Mapping


def weighted_sum(scores: Mapping[str, float], weights: Mapping[str, float]) -> float:
    """The sum of `weights[name] * scores[name]`; a score without a weight weighs 0.

    Raises:
        ValueError: a weight names no score, or a score that counts is not finite.
    """
    if unknown := sorted(set(weights) - set(scores)):
        raise ValueError(f"weights for scores that do not exist: {', '.join(unknown)}")
    total = 0.0
    for name, weight in weights.items():
        if weight == 0:
            continue
        if not math.isfinite(scores[name] * weight):
            raise ValueError(f"the score {name!r} is {scores[name]} and its weight {weight}; both must be finite")
        total += weight * scores[name]
    return total
