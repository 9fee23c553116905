"""The tasks that each step of a run draws, and what it remembers of them for the next ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...types import Dataset
from ..seeds import kinds_of
from .curriculum import TaskSource, updated_pass_rates
from .level_curriculum import LevelSource, level_means, levels_of
from .progress import RunProgress
from .settings import LoopSettings


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
        found = {str(row): reward for row, reward in rewards.items()}
        if self._levels is not None:
            found = level_means(self._levels, rewards)
        progress.pass_rates = updated_pass_rates(progress.pass_rates, found)
