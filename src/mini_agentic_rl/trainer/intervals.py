"""Intervals of a mean over problems by the bootstrap, where several answers to each problem make Wilson's too narrow.

Answers to one problem are alike, so that problems are drawn, not answers (the cluster bootstrap; Davison and Hinkley
1997, section 3.8). Of means that are 0 or 1 for every problem alike no resample differs: there Wilson's interval over
the problems is given.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from .statistics import AccuracyRow, wilson_interval

RESAMPLES: Final = 10_000
_SEED: Final = 0
_MAX_CELLS: Final = 2_000_000
"""Numbers that are drawn at once."""


def bootstrap_interval(values: Sequence[float], *, confidence: float = 0.95) -> tuple[float, float]:
    """Return the percentile interval of the mean of `values`, a number each problem, from `RESAMPLES` resamples.

    The draw is the same at every call. Without values nothing is known: (-inf, inf).

    Raises:
        ValueError: `confidence` is not in (0, 1).
    """
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be between 0 and 1, not {confidence}")
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
    low, high = np.quantile(means, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def mean_row(name: str, shares: Sequence[float], *, binary: bool = False) -> AccuracyRow:
    """Return the table line of a share that was found for each problem, with its 95 % interval.

    Args:
        shares: one a problem, each in [0, 1].
        binary: one answer was given to each problem, so that Wilson's interval is the one for them.
    """
    count, total = len(shares), float(sum(shares))
    if binary or (len(set(shares)) <= 1 and total in (0.0, float(count))):
        low, high = wilson_interval(total, count)
    else:
        low, high = bootstrap_interval(shares)
    return AccuracyRow(
        name=name, accuracy=total / count if count else 0.0, correct=total, count=count, low=low, high=high
    )
