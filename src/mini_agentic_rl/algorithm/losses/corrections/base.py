"""The base of all corrections: a pure function from log k of the terms to their weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..base import Floats, Ints


@dataclass(frozen=True)
class WeightBounds:
    """Bounds at which a weight is cut off, or beyond which a term is masked."""

    low: float
    """The setting `importance_floor`."""
    high: float
    """The setting `importance_cap`."""


@dataclass(frozen=True)
class Correction:
    """An entry of the table `CORRECTIONS`."""

    weights: Callable[[Floats, Ints, WeightBounds], Floats]
    """(log k, number of its rollout) of every term of the batch in, the weight of each term out."""
    over_rollouts: bool = False
    """True if it looks at all terms of a rollout together, so that none may be left out."""
