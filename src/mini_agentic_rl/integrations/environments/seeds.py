"""Tasks of an environment that is told nothing but a seed."""

from __future__ import annotations

import random

from ...datasets import Row, TaskRows, check_split, digest

_SEEDS = 2**31
"""Seeds below this fit every generator of random numbers."""


def seeded_tasks(name: str, split: str, size: int, seed: int) -> TaskRows:
    """Return `size` tasks with a `seed` each. A seed belongs to one split, whatever `seed` draws from.

    Raises:
        DatasetError: an unknown split, or a negative size.
    """
    place = {"train": 0, "val": 1, "test": 2}[check_split(split)]
    count = max(0, size)
    first = random.Random(f"{name}/{seed}").randrange(_SEEDS // 3 - count) * 3 + place
    return TaskRows([_row(name, first + 3 * step) for step in range(count)])


def _row(name: str, seed: int) -> Row:
    question = f"{name}, seed {seed}"
    return {"id": f"{digest(question)[:16]}", "question": question, "answer": "", "seed": seed}
