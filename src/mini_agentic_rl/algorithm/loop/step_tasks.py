"""The tasks that each step of a run draws, and what it remembers of them for the next ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...types import Dataset
from .curriculum import TaskSource, updated_pass_rates
from .level_curriculum import LevelSource, levels_of
from .progress import RunProgress
from .settings import LoopSettings


class StepTasks:
    """The tasks of a run, in the order that its settings ask for. All that it remembers is in the run's progress."""

    def __init__(self, settings: LoopSettings) -> None:
        self._settings = settings
        self._levels: list[str] | None = None

    def of_step(self, dataset: Dataset[Any], progress: RunProgress) -> TaskSource:
        """Return what the next step draws from."""
        settings = self._settings
        source = TaskSource(
            size=len(dataset),
            seed=settings.seed,
            step=progress.step,
            first=progress.step * settings.tasks_per_step + progress.extra_tasks,
            pass_rates=None if settings.curriculum == "none" else progress.pass_rates,
            floor=settings.curriculum_floor,
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
            progress.pass_rates = updated_pass_rates(progress.pass_rates, tasks.means(rewards))
        elif tasks.pass_rates is not None:
            progress.pass_rates = updated_pass_rates(tasks.pass_rates, rewards)
