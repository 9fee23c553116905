"""A curriculum over levels: tasks of the levels that teach most, where each single task comes too seldom to be known.

With thousands of tasks none comes twice in a short run, so that a pass rate of its own (`curriculum.py`) says nothing.
The pass rate of a level is known after a step: with p its running mean, a level is drawn with the weight

    max(floor, 4 p (1 - p))

(Foster et al. 2025, arXiv:2502.12272, section 3, over levels), and within it the tasks come as an epoch has them, each
once before any comes again. A level of which nothing is known weighs 1. The level of a task is its `difficulty`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...types import Dataset
from ..seeds import derive_seed, task_order
from .curriculum import TaskSource, learnability

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
    found: dict[str, list[float]] = {}
    for row, reward in rewards.items():
        found.setdefault(levels[row], []).append(reward)
    return {level: float(np.mean(values)) for level, values in found.items()}


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
