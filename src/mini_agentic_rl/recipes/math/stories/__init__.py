"""The stories of the arithmetic problems.

A story is either composed of clauses (`grammar.py`, words in `scenes.toml`) or written as a whole (`story.py`,
thousands of wordings in `texts/`). The stories in `transfer.toml` are never trained on.
"""

from __future__ import annotations

import random

from .grammar import compose
from .story import TRANSFER, Problem, Story, read_written

__all__ = ["LEVELS", "STORIES", "TRANSFER", "Problem", "Story", "draw_problem"]

LEVELS: tuple[int, ...] = (1, 2, 3, 4)
"""Numbers of operations."""
STORIES: tuple[Story, ...] = read_written()
_WRITTEN = {level: [story for story in STORIES for _ in story.phrasings if story.level == level] for level in LEVELS}
"""A level's written stories, each as often as it has phrasings, so that all phrasings are told equally often."""
_UNSEEN = {level: [story for story in TRANSFER if story.level == level] for level in LEVELS}
_WRITTEN_SHARE = {1: 0.75, 2: 0.7, 3: 0.5, 4: 0.4}
"""Share of a level's problems whose story was written as a whole. They differ more than composed ones do, but those of
three and four operations are fewer, above all in the test."""


def draw_problem(words: random.Random, numbers: random.Random, level: int, *, transfer: bool = False) -> Problem | None:
    """Return a problem of a level, its story drawn from `words`; None where the numbers do not fit the story.

    With `transfer` it is one of the stories that are never trained on.
    """
    if transfer:
        return words.choice(_UNSEEN[level]).tell(words, numbers)
    if words.random() < _WRITTEN_SHARE[level]:
        return words.choice(_WRITTEN[level]).tell(words, numbers)
    return compose(words, numbers, level)
