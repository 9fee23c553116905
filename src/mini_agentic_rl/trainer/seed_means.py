"""Means over the seeds of a run, with Student's intervals: how much another seed would differ, on the same problems."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import mean, stdev


def seed_interval(values: Sequence[float], *, confidence: float = 0.95) -> tuple[float, float] | None:
    """Return the interval of the mean of a number that each seed gave; None for a single one, which says nothing of
    others.

    mean ± t · s / sqrt(n), with t of Student's distribution with n - 1 degrees of freedom.
    """
    if len(values) < 2:
        return None
    half = student_quantile(len(values) - 1, confidence) * stdev(values) / math.sqrt(len(values))
    return mean(values) - half, mean(values) + half


def student_quantile(freedom: int, confidence: float) -> float:
    """Return the t that a variable of Student's distribution stays within with this probability.

    Raises:
        ValueError: `freedom` is below 1, or `confidence` not in (0, 1).
    """
    if freedom < 1 or not 0 < confidence < 1:
        raise ValueError(f"needs 1 degree of freedom and a confidence in (0, 1), not {freedom} and {confidence}")
    low, high = 0.0, 1.0
    while _within(high, freedom) < confidence:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, freedom) < confidence else (low, middle)
    return high


def _within(t: float, freedom: int) -> float:
    """Return the probability of [-t, t] (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    angle = math.atan(t / math.sqrt(freedom))
    cosine = math.cos(angle)
    odd = freedom % 2
    term, total = (cosine if odd else 1.0), 0.0
    for index in range(2 + odd, freedom + 1, 2):
        total += term
        term *= cosine * cosine * (index - 1) / index
    total *= math.sin(angle)
    return 2 / math.pi * (angle + total) if odd else total
