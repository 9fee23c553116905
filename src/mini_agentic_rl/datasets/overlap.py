"""Contamination between splits: which questions of one come back in another, whole, with other numbers, or in parts.

A question that comes back whole was trained on. One that comes back with other numbers was told to the model as a
story: what is measured on it is arithmetic, not reading. Runs of words (n-grams; Brown et al. 2020, appendix C, take
8 to 13) find what was reworded around a common part.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

_WORDS: Final = re.compile(r"\d+(?:[.,]\d+)*|\w+")
_NUMBER: Final = re.compile(r"\d+(?:[.,]\d+)*")
_SHOWN: Final = 3


def words_of(question: str) -> tuple[str, ...]:
    """Return the words and numbers of a question, in lower case: what spaces and signs do not change."""
    return tuple(_WORDS.findall(question.casefold()))


def without_numbers(words: Sequence[str]) -> tuple[str, ...]:
    """Return the words with every number alike."""
    return tuple("#" if _NUMBER.fullmatch(word) else word for word in words)


def split_overlap(seen: Sequence[str], asked: Sequence[str], ngram: int) -> dict[str, Any]:
    """Return how much of the questions `asked` was in those that were `seen`.

    Returns:
        `questions`: those asked. `same`: how many of them were seen. `same_but_numbers`: how many were seen with the
        same or other numbers. `with_ngram`: how many share a run of `ngram` words, numbers alike, with one that was
        seen. `ngrams_seen`: the mean share of a question's runs that were; of a question shorter than that the whole
        is the run. `examples`: the first questions that were seen, whole or with other numbers.
    """
    words = [words_of(question) for question in seen]
    whole, stories = set(words), {without_numbers(one) for one in words}
    runs = {run for one in words for run in _runs(without_numbers(one), ngram)}
    same = stories_seen = with_run = 0
    share = 0.0
    examples: list[str] = []
    for question in asked:
        own = words_of(question)
        story = without_numbers(own)
        found = _runs(story, ngram)
        common = len(found & runs)
        same += own in whole
        stories_seen += story in stories
        with_run += common > 0
        share += common / len(found)
        if story in stories and len(examples) < _SHOWN:
            examples.append(question)
    return {
        "questions": len(asked),
        "same": same,
        "same_but_numbers": stories_seen,
        "with_ngram": with_run,
        "ngrams_seen": share / len(asked) if asked else 0.0,
        "examples": examples,
    }


def overlap_of_splits(splits: Mapping[str, Sequence[str]], ngram: int) -> list[dict[str, Any]]:
    """Return `split_overlap` of each split with every one before it, as `seen` and `asked`; empty ones are left out."""
    found = []
    named = [(name, questions) for name, questions in splits.items() if questions]
    for index, (asked, questions) in enumerate(named):
        for seen, earlier in named[:index]:
            found.append({"seen": seen, "asked": asked, **split_overlap(earlier, questions, ngram)})
    return found


def _runs(words: Sequence[str], ngram: int) -> set[tuple[str, ...]]:
    """Return the runs of words in a question; one that is shorter is a run of its own."""
    return {tuple(words[start : start + ngram]) for start in range(max(1, len(words) - ngram + 1))}
