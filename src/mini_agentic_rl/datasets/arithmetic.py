"""Arithmetic word problems, generated: too large for a small model's head, easy with a calculator.

A problem belongs to the split that a hash of its operands names, whatever the story, the seed and the size, so no two
splits share a calculation. The same arguments give the same rows on every machine, and a smaller data set is the
beginning of a larger one.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from ..rewards import plain_number
from .rows import DatasetError, Row, Split, TaskRows, check_split, digest, split_of
from .stories import NAMES, STORIES, Operand, Story
from .worked import operations, results

LEVELS: tuple[int, ...] = (1, 2, 3, 4)

_SHARES: tuple[Split, ...] = ("train",) * 8 + ("val", "test")
_MAX_DRAWS = 2000
"""Draws for one row before the levels asked for are taken to be used up."""


class ArithmeticDataset(TaskRows):
    """`size` different problems of one split.

    Each row holds `id`, `question` (15 to 45 words), `answer` (an integer, or up to two decimal places), `expression`
    (what a calculator needs to give the answer), `difficulty` (its level) and `thought` (the plan in a few words).
    """

    def __init__(
        self, split: str = "train", size: int = 1000, seed: int = 0, difficulty: int | Sequence[int] = LEVELS
    ) -> None:
        """`difficulty` is a level, or several levels that take turns (see `Story.level`).

        Raises:
            DatasetError: an unknown split or level, a negative size, or a size beyond what the levels have to offer.
        """
        self.split = check_split(split)
        levels = (difficulty,) if isinstance(difficulty, int) else tuple(difficulty)
        if not levels or any(level not in LEVELS for level in levels):
            raise DatasetError(f"difficulty must be one or more of the levels {LEVELS}, not {difficulty!r}")
        if size < 0:
            raise DatasetError(f"size must be 0 or more, not {size}")
        rng = random.Random(f"arithmetic/{self.split}/{seed}")
        stories = {level: [story for story in STORIES if story.level == level] for level in levels}
        rows: list[Row] = []
        used: set[str] = set()
        for index in range(size):
            row = _draw(rng, stories[levels[index % len(levels)]], self.split, used)
            used.add(row["question"])
            rows.append(row)
        super().__init__(rows)


def split_of_operands(operands: Sequence[Operand]) -> Split:
    """Return the split that problems with these operands belong to, in whatever order the operands appear."""
    return split_of(" ".join(sorted(map(str, operands))))


def _draw(rng: random.Random, stories: Sequence[Story], split: Split, used: set[str]) -> Row:
    for _ in range(_MAX_DRAWS):
        story = rng.choice(stories)
        operands = story.draw(rng)
        if split_of_operands(operands) != split:
            continue
        values = dict(zip("abcd", operands, strict=False))
        name, other = rng.sample(NAMES, 2)
        question = rng.choice(story.phrasings).format(name=name, other=other, item=rng.choice(story.items), **values)
        if question not in used:
            break
    else:
        raise DatasetError(f"no further {split} problem found after {len(used)}; ask for a smaller size or more levels")
    expression = story.expression.format(**values)
    return {
        "id": f"arithmetic-{split}-{digest(question)[:12]}",
        "question": question,
        "answer": plain_number(results(operations(expression))[-1]),
        "expression": expression,
        "difficulty": story.level,
        "thought": story.thought,
    }
