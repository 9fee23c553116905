"""Arithmetic word problems, generated: too large for a small model's head, easy with a calculator.

A problem is in a split where a hash of its expression's numbers and a hash of its story both name it, whatever the seed
and the size: no two splits share a calculation, nor a story with other numbers. The split `transfer` has stories,
wordings and operations that no other split has. The same arguments give the same rows on every machine, and a smaller
data set is the beginning of a larger one.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

from ...datasets import DatasetError, Row, Split, TaskRows, check_split, digest, split_of
from ...rewards import plain_number
from .stories import LEVELS, Problem, draw_problem
from .worked import NUMBER, operations, results

TRANSFER = "transfer"
"""The split of stories that are never trained on."""

_MAX_DRAWS = 1000
"""Draws for one row before the levels asked for are taken to be used up."""

_MAX_NUMBERS = 100
"""Draws of numbers for one story before it is given up."""


class ArithmeticDataset(TaskRows):
    """`size` different problems of one split.

    Each row holds `id`, `question` (up to 60 words), `answer` (an integer, or up to two decimal places), `expression`
    (what a calculator needs to give the answer), `difficulty` (its level), `story` (the digest of what it tells without
    numbers and names) and `thought` (the plan in a few words).
    """

    def __init__(
        self, split: str = "train", size: int = 1000, seed: int = 0, difficulty: int | Sequence[int] = LEVELS
    ) -> None:
        """`difficulty` is a level, the number of operations, or several levels that take turns.

        Raises:
            DatasetError: an unknown split or level, a negative size, or a size beyond what the levels have to offer.
        """
        self.split: Split | Literal["transfer"] = "transfer" if split == TRANSFER else check_split(split)
        levels = (difficulty,) if isinstance(difficulty, int) else tuple(difficulty)
        if not levels or any(level not in LEVELS for level in levels):
            raise DatasetError(f"difficulty must be one or more of the levels {LEVELS}, not {difficulty!r}")
        if size < 0:
            raise DatasetError(f"size must be 0 or more, not {size}")
        super().__init__([dict(row) for row in _rows(self.split, size, seed, levels)])


@lru_cache(maxsize=8)
def _rows(split: str, size: int, seed: int, levels: tuple[int, ...]) -> tuple[Row, ...]:
    """Return the rows, kept for the next time: ten thousand take half a second to draw."""
    rng = random.Random(f"arithmetic/{split}/{seed}")
    rows: list[Row] = []
    used: set[str] = set()
    for index in range(size):
        row = _draw(rng, levels[index % len(levels)], split, used)
        used.add(row["question"])
        rows.append(row)
    return tuple(rows)


def _draw(rng: random.Random, level: int, split: str, used: set[str]) -> Row:
    problem = next((one for _ in range(_MAX_DRAWS) if (one := _tell(rng, level, split, used)) is not None), None)
    if problem is None:
        raise DatasetError(f"no further {split} problem found after {len(used)}; ask for a smaller size or more levels")
    return {
        "id": f"arithmetic-{split}-{digest(problem.question)[:12]}",
        "question": problem.question,
        "answer": plain_number(results(operations(problem.expression))[-1]),
        "expression": problem.expression,
        "difficulty": problem.level,
        "story": digest(problem.story)[:12],
        "thought": problem.thought,
    }


def _tell(rng: random.Random, level: int, split: str, used: set[str]) -> Problem | None:
    """Draw a story, and numbers for it until they fit; None if the story is of another split, or no numbers do.

    The stories of transfer are in no other split; their numbers are those of the test.
    """
    story = rng.getrandbits(64)
    for _ in range(_MAX_NUMBERS):
        problem = draw_problem(random.Random(story), rng, level, transfer=split == TRANSFER)
        if problem is None:
            continue
        if split != TRANSFER and split_of(problem.story) != split:
            return None
        numbers = " ".join(sorted(NUMBER.findall(problem.expression)))  # in whatever order they appear
        if split_of(numbers) == ("test" if split == TRANSFER else split) and problem.question not in used:
            return problem
    return None
