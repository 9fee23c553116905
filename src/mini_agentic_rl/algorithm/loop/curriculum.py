"""The tasks that each step draws: in the order of the data set, shuffled by epoch, or those more often that teach most.

A group of rollouts that are all right, or all wrong, teaches nothing: where rewards are 0 or 1, their variance in a
group whose task is solved with probability p is p (1 - p). Sampling by that ("learnability"; Foster et al. 2025,
arXiv:2502.12272, section 3) keeps a run at the edge of what the policy can do. Here the weight of a task is

    max(floor, 4 p (1 - p))

with p a running mean over the groups that were sampled of it; a task that was never sampled weighs 1.

With thousands of tasks none comes twice in a short run, so a task has no pass rate of its own. `curriculum=level` takes
the weight of a level (the field `difficulty` of a task) from its pass rate; within a level the tasks come as in an
epoch, each once before any comes again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...types import Dataset
from ..losses import Floats
from ..seeds import derive_seed, kinds_of, task_order, tasks_from
from ..settings import LoopSettings
from .state import RunProgress

_NEWEST = 0.5
"""Weight of the newest group in a task's pass rate: the policy changes, and older groups say less."""


def learnability(pass_rate: float, floor: float) -> float:
    """Return max(floor, 4 p (1 - p)): 1 for a task that is solved half of the time."""
    return max(floor, 4 * pass_rate * (1 - pass_rate))


def updated_pass_rates(
    pass_rates: Mapping[str, float], means: Mapping[int, float] | Mapping[str, float]
) -> dict[str, float]:
    """Return pass rates by row or level (as text, for JSON), with the mean rewards of new groups in them. Rewards are
    cut to 0..1."""
    rates = dict(pass_rates)
    for row, mean in means.items():
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


FIELD = "difficulty"
"""Field of a task that says its level."""


def levels_of(dataset: Dataset[Any]) -> list[str]:
    """Return the level of each task; "" of one that says none."""
    tasks = (dataset[row] for row in range(len(dataset)))
    return [str(task.get(FIELD, "")) if isinstance(task, Mapping) else "" for task in tasks]


def level_means(levels: Sequence[str], rewards: Mapping[int, float]) -> dict[str, float]:
    """Return the mean reward of each level, of the mean rewards by row.

    Args:
        levels: that of each row.
    """
    by_level: dict[str, list[float]] = {}
    for row, reward in rewards.items():
        by_level.setdefault(levels[row], []).append(reward)
    return {level: float(np.mean(values)) for level, values in by_level.items()}


@dataclass
class LevelSource(TaskSource):
    """The tasks of one step, drawn by level; `pass_rates` are by level."""

    levels: Sequence[str] = ()
    """Level of each row."""
    cursors: dict[str, int] = field(default_factory=dict)
    """Tasks of each level that were drawn so far, in this step and before."""

    def draw(self, count: int) -> list[int]:
        """Draw the next `count` rows."""
        rng = np.random.default_rng(derive_seed(self.seed, "levels", self.step, len(self.drawn)))
        names = sorted(set(self.levels))
        rates = self.pass_rates or {}
        weights = np.array([learnability(rates[name], self.floor) if name in rates else 1.0 for name in names])
        chosen = rng.choice(len(names), count, p=weights / weights.sum())
        rows = [self._next(names[index]) for index in chosen]
        self.drawn += rows
        return rows

    def _next(self, level: str) -> int:
        own = sum(one == level for one in self.levels)
        cursor = self.cursors.get(level, 0)
        self.cursors[level] = cursor + 1
        epoch, place = divmod(cursor, own)
        order = [row for row in task_order(self.seed, self.size, epoch) if self.levels[row] == level]
        return order[place]


class StepTasks:
    """The tasks of a run, in the order that its settings ask for. All that it remembers is in the run's progress."""

    def __init__(self, settings: LoopSettings) -> None:
        self._settings = settings
        self._levels: list[str] | None = None
        self._kinds: list[str] | None = None
        self._read = False

    def of_step(self, dataset: Dataset[Any], progress: RunProgress) -> TaskSource:
        """Return what the next step draws from."""
        first = progress.step * self._settings.tasks_per_step + progress.extra_tasks
        return self._source(dataset, progress, progress.step, first)

    def next_row(self, dataset: Dataset[Any], progress: RunProgress, number: int, waiting: Sequence[int]) -> int:
        """Return the row of group `number` of a run that samples ahead: none of those that are `waiting`, to be sampled
        or learnt, while there are others."""
        source = self._source(dataset, progress, number, number - len(waiting))
        source.drawn = list(waiting)
        (row,) = source.draw(1)
        if isinstance(source, LevelSource):
            progress.level_draws = source.cursors
        return row

    def _source(self, dataset: Dataset[Any], progress: RunProgress, step: int, first: int) -> TaskSource:
        settings = self._settings
        if not self._read:
            self._kinds, self._read = kinds_of(dataset), True
        source = TaskSource(
            size=len(dataset),
            seed=settings.seed,
            step=step,
            first=first,
            pass_rates=None if settings.curriculum == "none" else progress.pass_rates,
            floor=settings.curriculum_floor,
            kinds=self._kinds,
        )
        if settings.curriculum != "level":
            return source
        if self._levels is None:
            self._levels = levels_of(dataset)
        return LevelSource(**vars(source), levels=self._levels, cursors=dict(progress.level_draws))

    def remember(self, progress: RunProgress, tasks: TaskSource, rewards: Mapping[int, float]) -> None:
        """Keep what a step has drawn, and what its mean rewards, by row, say of the tasks that are drawn next."""
        progress.extra_tasks += len(tasks.drawn) - self._settings.tasks_per_step
        if isinstance(tasks, LevelSource):
            progress.level_draws = tasks.cursors
        self.rate(progress, rewards)

    def rate(self, progress: RunProgress, rewards: Mapping[int, float]) -> None:
        """Keep what mean rewards, by row, say of the tasks that are drawn next."""
        if self._settings.curriculum == "none":
            return
        means = {str(row): reward for row, reward in rewards.items()}
        if self._levels is not None:
            means = level_means(self._levels, rewards)
        progress.pass_rates = updated_pass_rates(progress.pass_rates, means)
