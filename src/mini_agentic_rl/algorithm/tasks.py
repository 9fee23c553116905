"""The tasks that each step draws, and the seeds of all draws of a run.

Every draw depends on the run's seed and on its purpose alone, so that a run can be resumed. Tasks come in the order of
the data set, shuffled by epoch, or those more often that teach most (`curriculum=pass_rate`): a group of rollouts that
are all right, or all wrong, teaches nothing. Where rewards are 0 or 1, their variance in a group whose task is solved
with probability p is p (1 - p). Sampling by that ("learnability"; Foster et al. 2025, arXiv:2502.12272, section 3)
keeps a run at the edge of what the policy can do. Here the weight of a task is

    max(floor, 4 p (1 - p))

with p a running mean over the groups that were sampled of it; a task that was never sampled weighs 1.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ..types import Dataset

if TYPE_CHECKING:
    from .settings import LoopSettings

_FLOOR: Final = 0.1
"""Weight of tasks that are always or never solved: they are still tried now and then."""
_NEWEST: Final = 0.5
"""Weight of the newest group in a task's pass rate: the policy changes, and older groups say less."""


def derive_seed(seed: int, *parts: int | str) -> int:
    """Return a number below 2^63 for one purpose of a run."""
    text = "/".join(str(part) for part in (seed, *parts))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def task_order(seed: int, size: int, epoch: int, kinds: Sequence[str] | None = None) -> list[int]:
    """Return the order of a data set's rows in one epoch.

    Args:
        kinds: kind of each row; kinds then take turns, so that a step has as many tasks of each. A step whose tasks are
            mostly of one kind teaches the answer of that kind to all.
    """
    order = [int(index) for index in np.random.default_rng([seed, epoch]).permutation(size)]
    if kinds is None:
        return order
    waiting: dict[str, list[int]] = {}
    for row in order:
        waiting.setdefault(kinds[row], []).append(row)
    rounds = zip_longest(*waiting.values())
    return [row for one_of_each in rounds for row in one_of_each if row is not None]


def tasks_from(seed: int, size: int, first: int, count: int, kinds: Sequence[str] | None = None) -> list[int]:
    """Return `count` rows after the first `first` ones of a run, going through all rows before any comes again."""
    orders: dict[int, list[int]] = {}
    rows = []
    for position in range(first, first + count):
        epoch, index = divmod(position, size)
        if epoch not in orders:
            orders[epoch] = task_order(seed, size, epoch, kinds)
        rows.append(orders[epoch][index])
    return rows


def kinds_of(dataset: Dataset[Any]) -> list[str] | None:
    """Return the `kind` of each task; None where a task has none."""
    kinds: list[str] = []
    for row in range(len(dataset)):
        task = dataset[row]
        if not isinstance(task, Mapping) or "kind" not in task:
            return None  # mostly the first task: a data set without kinds is not read whole
        kinds.append(str(task["kind"]))
    return kinds or None


class TaskDraws:
    """Draws the tasks of a run, in the order of its settings."""

    def __init__(self, settings: LoopSettings, dataset: Dataset[Any], pass_rates: dict[str, float]) -> None:
        """`pass_rates` holds those of a curriculum, by row; `rate` updates it."""
        self._seed = settings.seed
        self._has_curriculum = settings.curriculum == "pass_rate"
        self._size = len(dataset)
        self._kinds = kinds_of(dataset)
        self.pass_rates = pass_rates

    def draw(self, count: int, *, step: int, first: int, drawn: Sequence[int]) -> list[int]:
        """Return the next `count` rows, none of those that are `drawn` already while there are others.

        Args:
            step: number of the step, or of the group where sampling runs ahead; with the seed it fixes the draw of a
                curriculum.
            first: number of tasks that the run drew before `drawn`.
        """
        if not self._has_curriculum:
            return tasks_from(self._seed, self._size, first + len(drawn), count, self._kinds)
        rng = np.random.default_rng(derive_seed(self._seed, "curriculum", step, len(drawn)))
        learnability = np.ones(self._size)
        for row, rate in self.pass_rates.items():
            learnability[int(row)] = max(_FLOOR, 4 * rate * (1 - rate))
        rows: list[int] = []
        while len(rows) < count:
            counts = np.bincount(np.array([*drawn, *rows], np.int64), minlength=self._size)
            weights = np.where(counts == counts.min(), learnability, 0.0)
            possible = min(count - len(rows), int(np.count_nonzero(weights)))
            chosen = rng.choice(weights.size, possible, replace=False, p=weights / weights.sum())
            rows += [int(row) for row in chosen]
        return rows

    def rate(self, rewards: Mapping[int, float]) -> None:
        """Update the pass rates by the mean rewards of a step, by row; rewards are cut to 0..1."""
        if not self._has_curriculum:
            return
        for row, reward in rewards.items():
            rate = min(1.0, max(0.0, reward))
            before = self.pass_rates.get(str(row), rate)
            self.pass_rates[str(row)] = before + _NEWEST * (rate - before)
