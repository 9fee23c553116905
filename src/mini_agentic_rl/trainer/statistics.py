"""The uncertainty of a measured accuracy: Wilson's interval, and the unbiased pass@k."""

from __future__ import annotations

import math
from collections.abc import Iterable
from statistics import NormalDist
from typing import TypedDict


class AccuracyRow(TypedDict):
    """One line of the accuracy table."""

    name: str
    """Name of the measurement: "before", "after SFT", "after RL", "pass@4"."""
    accuracy: float
    """In [0, 1]."""
    correct: float
    """Number of problems solved: `accuracy * count`."""
    count: int
    """Number of problems."""
    low: float
    """Lower end of the 95 % confidence interval."""
    high: float
    """Upper end of the 95 % confidence interval."""


def wilson_interval(successes: float, count: int, *, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson's score interval for a proportion (Wilson 1927), which stays inside [0, 1] and is sound near its ends.

    With p = successes / count and z the normal quantile of `confidence`:
    (p + z²/2n ± z·sqrt(p(1-p)/n + z²/4n²)) / (1 + z²/n).

    Args:
        successes: How many succeeded, 0 to `count`; a fraction is allowed (a sum of pass@k estimates).
        count: How many were tried. With 0 nothing is known: (0, 1).
        confidence: In (0, 1).

    Raises:
        ValueError: an argument is out of its range.
    """
    if count < 0 or not 0 <= successes <= count:
        raise ValueError(f"successes must be between 0 and count, not {successes} of {count}")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be between 0 and 1, not {confidence}")
    if count == 0:
        return 0.0, 1.0
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    p = successes / count
    middle = p + z * z / (2 * count)
    spread = z * math.sqrt(p * (1 - p) / count + z * z / (4 * count * count))
    scale = 1 + z * z / count
    low = (middle - spread) / scale if successes else 0.0  # there the two are equal, but for rounding
    high = (middle + spread) / scale if successes < count else 1.0
    return max(0.0, low), min(1.0, high)


def pass_at_k(samples: int, correct: int, k: int) -> float:
    """Unbiased estimate of the chance that one of `k` samples is right (Chen et al. 2021, equation 1).

    1 - C(n - c, k) / C(n, k) for n samples of which c are right.

    Raises:
        ValueError: not 1 <= k <= samples, or not 0 <= correct <= samples.
    """
    if not 1 <= k <= samples:
        raise ValueError(f"k must be between 1 and the number of samples, not {k} of {samples}")
    if not 0 <= correct <= samples:
        raise ValueError(f"correct must be between 0 and the number of samples, not {correct} of {samples}")
    if samples - correct < k:
        return 1.0
    return 1.0 - math.prod(1.0 - k / drawn for drawn in range(samples - correct + 1, samples + 1))


def mean_pass_at_k(outcomes: Iterable[tuple[int, int]], k: int) -> float:
    """Mean of `pass_at_k` over problems, each given as (samples, correct); 0 if there are none."""
    values = [pass_at_k(samples, correct, k) for samples, correct in outcomes]
    return sum(values) / len(values) if values else 0.0


def accuracy_row(name: str, correct: float, count: int) -> AccuracyRow:
    """The table line for `correct` of `count` problems, with its 95 % interval.

    Raises:
        ValueError: `correct` is not between 0 and `count`.
    """
    low, high = wilson_interval(correct, count)
    return AccuracyRow(
        name=name, accuracy=correct / count if count else 0.0, correct=correct, count=count, low=low, high=high
    )
