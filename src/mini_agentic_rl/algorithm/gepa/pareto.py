"""Selection on a Pareto front over instances (GEPA; Agrawal et al. 2025, arXiv:2507.19457, algorithm 2).

    s*[i] = max over k of S_k[i]                  the best score on instance i
    P*[i] = {k : S_k[i] = s*[i]}                  who has it
    C     = union of all P*[i], without those that another of C dominates
    f[k]  = number of i with k in P*[i]           candidate k of C is drawn with probability f[k] / sum of f

A prompt that is best at something stays a parent, however low its mean is; drawing by the mean alone would end in the
first good prompt (section 3.3).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

Scores = Sequence[Sequence[float]]
"""S_k[i]: for each candidate its score on each instance."""


def pareto_weights(scores: Scores) -> list[int]:
    """Return f[k] for each candidate; 0 for those that are off the front or dominated.

    Raises:
        ValueError: there is no candidate, or no instance.
    """
    scores_KI = np.array(scores, np.float64)
    if scores_KI.ndim != 2 or scores_KI.size == 0:
        raise ValueError("a Pareto front needs a candidate and an instance")
    best_KI = scores_KI == scores_KI.max(axis=0)
    front = [int(k) for k in np.nonzero(best_KI.any(axis=1))[0]]
    dominated: set[int] = set()
    for k in front:  # the one with the lowest mean first would give the same set: domination is transitive
        others = [other for other in front if other != k and other not in dominated]
        if any(_dominates(scores_KI[other], scores_KI[k], earlier=other < k) for other in others):
            dominated.add(k)
    return [0 if k in dominated else int(best_KI[k].sum()) for k in range(len(scores_KI))]


def select(scores: Scores, draw: float) -> int:
    """Return the candidate that a number from 0 to 1, 1 left out, draws."""
    weights = pareto_weights(scores)
    mark, total = draw * sum(weights), 0
    for k, weight in enumerate(weights):
        total += weight
        if mark < total:
            return k
    return len(weights) - 1


def _dominates(one: np.ndarray, other: np.ndarray, *, earlier: bool) -> bool:
    """Return True if `one` is nowhere worse, and better somewhere; of two that are equal everywhere the earlier
    stays."""
    return bool((one >= other).all() and ((one > other).any() or earlier))
