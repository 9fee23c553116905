"""Paired tests: two runs on the same problems, each problem compared with itself.

What both solve and what neither solves says nothing about which is better. The exact sign-flip test asks how often the
sum of the differences would be as far from 0 as it is, if each problem's difference had either sign with equal chance
(Fisher 1935, section 21). With one answer a problem it is McNemar's exact test: a binomial test of the problems that
only one of the two solves.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from .intervals import bootstrap_interval
from .statistics import wilson_interval


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


def newcombe_interval(
    both: int, first: int, second: int, neither: int, *, confidence: float = 0.95
) -> tuple[float, float]:
    """Return the interval of the share of the second less that of the first (Newcombe 1998, Statistics in Medicine 17,
    2635, method 10): Wilson's intervals of both shares, put together by their correlation.

    Args:
        both, first, second, neither: problems that both, only the first, only the second and none of the two solve.

    Raises:
        ValueError: there is no problem.
    """
    count = both + first + second + neither
    if count == 0:
        raise ValueError("there is no problem to compare")
    one, other = (both + first) / count, (both + second) / count
    one_low, one_high = wilson_interval(both + first, count, confidence=confidence)
    other_low, other_high = wilson_interval(both + second, count, confidence=confidence)
    phi = _correlation(both, first, second, neither)
    below, above = (other - other_low, one_high - one), (other_high - other, one - one_low)

    def width(a: float, b: float) -> float:
        return math.sqrt(max(0.0, a * a - 2 * phi * a * b + b * b))

    return max(-1.0, other - one - width(*below)), min(1.0, other - one + width(*above))


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
