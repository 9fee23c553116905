"""Rows of task data sets, each with a question and an answer and in one split, and the overlap between splits.

A published split is used as it is. Otherwise a split is a tenth of the questions, chosen by the hash of the question,
so that no question is in two splits, whatever the order of the rows.

`split_overlap` measures contamination: how many questions of one split are in another, verbatim, with other numbers, or
in part. Runs of words (n-grams; Brown et al. 2020, appendix C, take 8 to 13) find reworded questions.
"""

from __future__ import annotations

import hashlib
import logging
import random
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias, TypeVar

from ..errors import UserError, nearest
from ..rewards import ungrouped

logger = logging.getLogger(__name__)

Row: TypeAlias = dict[str, Any]
"""A task: at least `id`, `question` and `answer`, all strings."""

Split: TypeAlias = Literal["train", "val", "test"]
SPLITS: tuple[Split, ...] = ("train", "val", "test")

_SHARES: tuple[Split, ...] = ("train",) * 8 + ("val", "test")


class DatasetError(UserError, ValueError):
    """A data set that cannot be read or made as asked; the message names the file, line and field or the setting."""


class TaskRows(Sequence[Row]):
    """Rows in memory, as a `Dataset`. A slice is again such a data set."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = list(rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: Any) -> Any:
        """Return the row at an integer, or the `TaskRows` of a slice."""
        return TaskRows(self._rows[index]) if isinstance(index, slice) else self._rows[index]


def meant(name: str, known: Sequence[str]) -> str:
    """Return the known name that is near, as the end of a complaint; nothing where none is."""
    near = nearest(name, known)
    return "" if near is None else f" (did you mean {near!r}?)"


def check_split(split: str) -> Split:
    """`split` itself.

    Raises:
        DatasetError: it is none of `SPLITS`.
    """
    for known in SPLITS:
        if split == known:
            return known
    raise DatasetError(f"split must be one of {', '.join(SPLITS)}, not {split!r}")


def digest(text: str) -> str:
    """32 hexadecimal digits that depend on the text alone, the same on every machine."""
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def split_of(key: str) -> Split:
    """Return the split of everything with this key: 8 of 10 keys are for training, 1 each for the others."""
    return _SHARES[int(digest(key), 16) % len(_SHARES)]


def choose(rows: Sequence[Row], size: int | None, seed: int) -> TaskRows:
    """Return `size` of the rows, drawn without replacement; all of them in their order when `size` is None.

    Where there are fewer than `size`, all of them, shuffled; the log says so.

    Raises:
        DatasetError: a negative size.
    """
    if size is None:
        return TaskRows(rows)
    if size < 0:
        raise DatasetError(f"size must be 0 or more, not {size}")
    if size > len(rows):
        logger.info("%d rows were asked for, but there are only %d", size, len(rows))
    return TaskRows(random.Random(seed).sample(list(rows), min(size, len(rows))))


T = TypeVar("T")

SPLIT_NAMES: dict[Split, tuple[str, ...]] = {
    "train": ("train",),
    "val": ("validation", "val", "valid", "dev", "eval"),
    "test": ("test",),
}
"""Names of the splits as published data sets have them."""

ALL = "all"


def select(parts: Mapping[str, Sequence[T]], split: str, key: Callable[[T], str], *, ending: str = "") -> list[T]:
    """Return the rows of "train", "val" or "test" out of the published parts, or those of all parts for "all".

    A data set of one part is divided 8 : 1 : 1, with at least one question for val and test from three on. Otherwise
    what was not published is taken out of the part for training.

    Args:
        parts: the rows by the name of the published split.
        split: which to give.
        key: the question of a row.
        ending: what names of parts may end in beside the split's, such as "prefs" in "train_prefs".

    Raises:
        DatasetError: an unknown split, or there is no part for training to divide.
    """
    if split == ALL:
        return [row for rows in parts.values() for row in rows]
    wanted = check_split(split)
    if len(parts) == 1:
        rows = next(iter(parts.values()))
        chosen = divided({key(row) for row in rows}, wanted)
        return [row for row in rows if key(row) in chosen]
    names = {known: _published(parts, known, ending) for known in SPLIT_NAMES}
    name = names[wanted]
    if name is not None and wanted != "train":
        return list(parts[name])
    pool = names["train"]
    if pool is None:
        raise DatasetError(f"no split train among {', '.join(parts)}; ask for the split all")
    kept_out = {known for known in ("val", "test") if names[known] is None}
    if wanted == "train":
        return [row for row in parts[pool] if split_of(key(row)) not in kept_out]
    return [row for row in parts[pool] if split_of(key(row)) == wanted]


def divided(keys: Collection[str], split: Split) -> set[str]:
    """Return the keys of one split: a tenth each for val and test (at least one from three on), else train."""
    ordered = sorted(keys, key=digest)
    held_out = max(1, len(ordered) // 10) if len(ordered) >= 3 else 0
    parts: dict[Split, list[str]] = {
        "test": ordered[:held_out],
        "val": ordered[held_out : 2 * held_out],
        "train": ordered[2 * held_out :],
    }
    return set(parts[split])


def _published(parts: Mapping[str, object], split: Split, ending: str) -> str | None:
    names = [name for alias in SPLIT_NAMES[split] for name in (f"{alias}_{ending}", alias)]
    return next((name for name in names if name in parts), None)


def final_answer(value: Any) -> str | None:
    """Return a right answer as text: text, a number, true or false, or a list of these; None for anything else.

    Of a worked solution it is what stands after the last "####", "" where nothing does, and a number there is without
    its thousands commas; so are the items of a list, whose own commas part them.
    """
    if isinstance(value, list) and value and all(isinstance(item, str | int | float) for item in value):
        return "[" + ", ".join(ungrouped(str(item)) for item in value) + "]"
    if not isinstance(value, str | int | float) or not str(value).strip():
        return None
    text = str(value).strip()
    return ungrouped(text.rpartition("####")[2].strip()) if "####" in text else text


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
