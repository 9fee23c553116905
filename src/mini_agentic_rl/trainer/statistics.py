"""Uncertainty of measured accuracies: Wilson and bootstrap intervals, pass@k, paired tests."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from statistics import NormalDist
from typing import Final, NamedTuple, TypedDict

import numpy as np


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


def wilson_interval(successes: float, count: int) -> tuple[float, float]:
    """Return Wilson's 95 % score interval for a proportion (Wilson 1927), which stays inside [0, 1].

    With p = successes / count and z = 1.96: (p + z²/2n ± z·sqrt(p(1-p)/n + z²/4n²)) / (1 + z²/n).

    Args:
        successes: How many succeeded, 0 to `count`; a fraction is allowed (a sum of pass@k estimates).
        count: How many were tried. With 0 nothing is known: (0, 1).

    Raises:
        ValueError: an argument is out of its range.
    """
    if count < 0 or not 0 <= successes <= count:
        raise ValueError(f"successes must be between 0 and count, not {successes} of {count}")
    if count == 0:
        return 0.0, 1.0
    z = NormalDist().inv_cdf(0.975)
    p = successes / count
    middle = p + z * z / (2 * count)
    spread = z * math.sqrt(p * (1 - p) / count + z * z / (4 * count * count))
    scale = 1 + z * z / count
    low = (middle - spread) / scale if successes else 0.0  # there the two are equal, but for rounding
    high = (middle + spread) / scale if successes < count else 1.0
    return max(0.0, low), min(1.0, high)


def pass_at_k(samples: int, correct: int, k: int) -> float:
    """Return an unbiased estimate of the chance that one of `k` samples is right (Chen et al. 2021, equation 1).

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


def accuracy_row(name: str, correct: float, count: int) -> AccuracyRow:
    """Return the table line for `correct` of `count` problems, with its 95 % interval.

    Raises:
        ValueError: `correct` is not between 0 and `count`.
    """
    low, high = wilson_interval(correct, count)
    return AccuracyRow(
        name=name, accuracy=correct / count if count else 0.0, correct=correct, count=count, low=low, high=high
    )


RESAMPLES: Final = 10_000
_SEED: Final = 0
_MAX_CELLS: Final = 2_000_000
"""Numbers that are drawn at once."""


def bootstrap_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % percentile interval of the mean of `values`, a number each problem, from `RESAMPLES` resamples.

    The draw is the same at every call. Without values nothing is known: (-inf, inf).
    """
    if len(values) == 0:
        return -np.inf, np.inf
    numbers = np.asarray(values, np.float64)
    rng = np.random.default_rng(_SEED)
    rows = max(1, _MAX_CELLS // numbers.size)
    means = np.concatenate(
        [
            numbers[rng.integers(0, numbers.size, (min(rows, RESAMPLES - begin), numbers.size))].mean(axis=1)
            for begin in range(0, RESAMPLES, rows)
        ]
    )
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)


def mean_row(name: str, shares: Sequence[float], *, binary: bool = False) -> AccuracyRow:
    """Return the table line of the mean of a share of each problem, with its 95 % interval.

    Args:
        shares: one a problem, each in [0, 1].
        binary: each problem has one answer; the interval is then Wilson's.
    """
    count, total = len(shares), float(sum(shares))
    row = accuracy_row(name, total, count)
    if not binary and (len(set(shares)) > 1 or total not in (0.0, float(count))):
        row["low"], row["high"] = bootstrap_interval(shares)
    return row


class PairedDifference(NamedTuple):
    """The difference between two runs: how much better the second is."""

    difference: float
    """Mean of the second less that of the first, from -1 to 1."""
    low: float
    """Lower end of its 95 % interval."""
    high: float
    """Upper end of its 95 % interval."""
    p: float
    """Two-sided, exact."""


def sign_flip_p(differences: Sequence[Fraction]) -> float:
    """Return the two-sided p of the exact sign-flip test; 1 where no problem differs."""
    scale = math.lcm(1, *(difference.denominator for difference in differences))
    sizes = [abs(int(difference * scale)) for difference in differences if difference]
    observed = abs(int(sum(differences) * scale))
    reach = sum(sizes)
    chances = np.zeros(2 * reach + 1)
    chances[reach] = 1.0
    for size in sizes:
        flipped = np.zeros_like(chances)
        flipped[size:] += 0.5 * chances[: chances.size - size]
        flipped[: chances.size - size] += 0.5 * chances[size:]
        chances = flipped
    sums = np.abs(np.arange(-reach, reach + 1))
    return min(1.0, float(chances[sums >= observed].sum()))


def newcombe_interval(both: int, first: int, second: int, neither: int) -> tuple[float, float]:
    """Return the 95 % interval of the share of the second less that of the first (Newcombe 1998, Statistics in Medicine
    17, 2635, method 10): Wilson's intervals of both shares, put together by their correlation.

    Args:
        both, first, second, neither: problems that both, only the first, only the second and none of the two solve.

    Raises:
        ValueError: there is no problem.
    """
    count = both + first + second + neither
    if count == 0:
        raise ValueError("there is no problem to compare")
    first_share, second_share = (both + first) / count, (both + second) / count
    low_1, high_1 = wilson_interval(both + first, count)
    low_2, high_2 = wilson_interval(both + second, count)
    phi = _correlation(both, first, second, neither)
    below, above = (second_share - low_2, high_1 - first_share), (high_2 - second_share, first_share - low_1)

    def width(a: float, b: float) -> float:
        return math.sqrt(max(0.0, a * a - 2 * phi * a * b + b * b))

    return max(-1.0, second_share - first_share - width(*below)), min(1.0, second_share - first_share + width(*above))


def _correlation(both: int, first: int, second: int, neither: int) -> float:
    """Return the phi of the two, with Newcombe's correction for continuity; 0 where a margin is empty."""
    margins = (both + first) * (second + neither) * (both + second) * (first + neither)
    if margins == 0:
        return 0.0
    count, cross = both + first + second + neither, float(both * neither - first * second)
    if cross > 0:
        cross = max(0.0, cross - count / 2)
    return cross / math.sqrt(margins)


def compare_shares(first: Sequence[Fraction], second: Sequence[Fraction]) -> PairedDifference:
    """Compare the shares of right answers of two runs, problem by problem.

    With one answer a problem the interval is Newcombe's, else that of the bootstrap over problems.

    Raises:
        ValueError: there is no problem, or not the same number of them.
    """
    differences = [b - a for a, b in zip(first, second, strict=True)]
    if not differences:
        raise ValueError("there is no problem to compare")
    if all(share in (0, 1) for share in (*first, *second)):
        pairs = Counter((a > 0, b > 0) for a, b in zip(first, second, strict=True))
        low, high = newcombe_interval(pairs[True, True], pairs[True, False], pairs[False, True], pairs[False, False])
    else:
        low, high = bootstrap_interval([float(difference) for difference in differences])
    return PairedDifference(float(sum(differences) / len(differences)), low, high, sign_flip_p(differences))


def holm(p_values: Sequence[float]) -> list[float]:
    """Return the p-values of several comparisons made at once, by Holm's step-down correction (Holm 1979)."""
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted
