"""Selection of the tasks that a step samples: in the order of the data set, shuffled by epoch, or those more often that
teach most.

A group of rollouts that are all right, or all wrong, teaches nothing: where rewards are 0 or 1, their variance in a
group whose task is solved with probability p is p (1 - p). Sampling by that ("learnability"; Foster et al. 2025,
arXiv:2502.12272, section 3) keeps a run at the edge of what the policy can do. Here the weight of a task is

    max(floor, 4 p (1 - p))

with p a running mean over the groups that were sampled of it; a task that was never sampled weighs 1.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..losses.base import Floats
from ..seeds import derive_seed, tasks_from

_NEWEST = 0.5
"""Weight of the newest group in a task's pass rate: the policy changes, and older groups say less."""


def learnability(pass_rate: float, floor: float) -> float:
    """Return max(floor, 4 p (1 - p)): 1 for a task that is solved half of the time."""
    return max(floor, 4 * pass_rate * (1 - pass_rate))


def updated_pass_rates(
    pass_rates: Mapping[str, float], found: Mapping[int, float] | Mapping[str, float]
) -> dict[str, float]:
    """Return pass rates by row or level (as text, for JSON), with the mean rewards of new groups in them. Rewards are
    cut to 0..1."""
    rates = dict(pass_rates)
    for row, mean in found.items():
        rate = min(1.0, max(0.0, mean))
        before = rates.get(str(row))
        rates[str(row)] = rate if before is None else before + _NEWEST * (rate - before)
    return rates


@dataclass
class TaskSource:
    """The tasks of one step, drawn as many at a time as are asked for."""

    size: int
    """Tasks of the data set."""
    seed: int
    """Of the run."""
    step: int
    """Number of the step, from 0."""
    first: int
    """Number of tasks that the run drew before this step."""
    pass_rates: Mapping[str, float] | None = None
    """By row; None draws in the order of the epochs."""
    floor: float = 0.1
    """The least weight of a task."""
    kinds: Sequence[str] | None = None
    """Kind of each task: in the order of the epochs, kinds take turns."""
    drawn: list[int] = field(default_factory=list)
    """Rows so far."""

    def draw(self, count: int) -> list[int]:
        """Draw the next `count` rows. None comes twice in a step while there are others."""
        if self.pass_rates is None:
            rows = tasks_from(self.seed, self.size, self.first + len(self.drawn), count, self.kinds)
        else:
            rng = np.random.default_rng(derive_seed(self.seed, "curriculum", self.step, len(self.drawn)))
            rows = []
            while len(rows) < count:
                rows += _weighted(self._weights(self.pass_rates, [*self.drawn, *rows]), count - len(rows), rng)
        self.drawn += rows
        return rows

    def _weights(self, pass_rates: Mapping[str, float], drawn: Collection[int]) -> Floats:
        weights = np.ones(self.size)
        for row, rate in pass_rates.items():
            weights[int(row)] = learnability(rate, self.floor)
        counts = np.bincount(np.array(list(drawn), np.int64), minlength=self.size)
        return np.where(counts == counts.min(), weights, 0.0)


def _weighted(weights: Floats, count: int, rng: np.random.Generator) -> list[int]:
    """Draw at most `count` different rows of non-zero weight."""
    possible = min(count, int(np.count_nonzero(weights)))
    return [int(row) for row in rng.choice(weights.size, possible, replace=False, p=weights / weights.sum())]
