"""The tasks that each step draws: in the order of the data set, shuffled by epoch, or those more often that teach most.

A group of rollouts that are all right, or all wrong, teaches nothing: where rewards are 0 or 1, their variance in a
group whose task is solved with probability p is p (1 - p). Sampling by that ("learnability"; Foster et al. 2025,
arXiv:2502.12272, section 3) keeps a run at the edge of what the policy can do. Here the weight of a task is

    max(floor, 4 p (1 - p))

with p a running mean over the groups that were sampled of it; a task that was never sampled weighs 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from ..types import Dataset
from .losses import Floats
from .seeds import derive_seed, kinds_of, tasks_from
from .settings import LoopSettings
from .state import RunProgress

_FLOOR: Final = 0.1
"""Weight of tasks that are always or never solved: they are still tried now and then."""
_NEWEST: Final = 0.5
"""Weight of the newest group in a task's pass rate: the policy changes, and older groups say less."""


def learnability(pass_rate: float) -> float:
    """Return max(floor, 4 p (1 - p)): 1 for a task that is solved half of the time."""
    return max(_FLOOR, 4 * pass_rate * (1 - pass_rate))


@dataclass
class TaskSource:
    """The tasks of one step, drawn a few at a time."""

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
                weights = self._weights(self.pass_rates, [*self.drawn, *rows])
                possible = min(count - len(rows), int(np.count_nonzero(weights)))
                chosen = rng.choice(weights.size, possible, replace=False, p=weights / weights.sum())
                rows += [int(row) for row in chosen]
        self.drawn += rows
        return rows

    def _weights(self, pass_rates: Mapping[str, float], drawn: Sequence[int]) -> Floats:
        weights = np.ones(self.size)
        for row, rate in pass_rates.items():
            weights[int(row)] = learnability(rate)
        counts = np.bincount(np.array(drawn, np.int64), minlength=self.size)
        return np.where(counts == counts.min(), weights, 0.0)


class TaskDraws:
    """Draws the tasks of a run in the order of its settings. Its state is in the run's progress."""

    def __init__(self, settings: LoopSettings) -> None:
        self._settings = settings
        self._kinds: list[str] | None = None
        self._read = False

    def of_step(self, dataset: Dataset[Any], progress: RunProgress) -> TaskSource:
        """Return the source of the next step's tasks."""
        first = progress.step * self._settings.tasks_per_step + progress.extra_tasks
        return self._source(dataset, progress, progress.step, first)

    def next_row(self, dataset: Dataset[Any], progress: RunProgress, number: int, waiting: Sequence[int]) -> int:
        """Return the row of group `number` of a run that samples ahead: none of those that are `waiting`, to be sampled
        or learnt, while there are others."""
        source = self._source(dataset, progress, number, number - len(waiting))
        source.drawn = list(waiting)
        (row,) = source.draw(1)
        return row

    def _source(self, dataset: Dataset[Any], progress: RunProgress, step: int, first: int) -> TaskSource:
        settings = self._settings
        if not self._read:
            self._kinds, self._read = kinds_of(dataset), True
        return TaskSource(
            size=len(dataset),
            seed=settings.seed,
            step=step,
            first=first,
            pass_rates=None if settings.curriculum == "none" else progress.pass_rates,
            kinds=self._kinds,
        )

    def rate(self, progress: RunProgress, rewards: Mapping[int, float]) -> None:
        """Update the pass rates by the mean rewards of a step, by row; rewards are cut to 0..1."""
        if self._settings.curriculum == "none":
            return
        for row, reward in rewards.items():
            rate = min(1.0, max(0.0, reward))
            before = progress.pass_rates.get(str(row), rate)
            progress.pass_rates[str(row)] = before + _NEWEST * (rate - before)
