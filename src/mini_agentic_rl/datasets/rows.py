"""Rows of task data sets, their splits, and the overlap between splits.

A published split is used as it is. Otherwise rows are divided by the hash of their question, so no question is in two
splits, whatever the order of the rows.
"""

from __future__ import annotations

import hashlib
import logging
import random
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias, TypeVar

from ..errors import UserError
from ..rewards import ungrouped

logger = logging.getLogger(__name__)

Row: TypeAlias = dict[str, Any]
"""A task: at least `id`, `question` and `answer`, all strings."""

Split: TypeAlias = Literal["train", "val", "test"]
SPLITS: tuple[Split, ...] = ("train", "val", "test")

_SHARES: tuple[Split, ...] = ("train",) * 8 + ("val", "test")


class DatasetError(UserError, ValueError):
    """A data set that cannot be read or made; the message names the file, line and field, or the setting."""


class TaskRows(list[Row]):
    """Rows in memory, as a `Dataset`."""


def check_split(split: str) -> Split:
    """Return `split`.

    Raises:
        DatasetError: it is none of `SPLITS`.
    """
    for known in SPLITS:
        if split == known:
            return known
    raise DatasetError(f"`split` must be one of {', '.join(SPLITS)}, not {split!r}")


def digest(text: str) -> str:
    """Return a hash of 32 hexadecimal digits, the same on every machine."""
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def split_of(key: str) -> Split:
    """Return the split of a key: 8 of 10 keys are for training, 1 each for the others."""
    return _SHARES[int(digest(key), 16) % len(_SHARES)]


def choose(rows: Sequence[Row], size: int | None, seed: int) -> TaskRows:
    """Return `size` of the rows, drawn without replacement, or fewer where there are fewer (logged). None takes all, in
    order.

    Raises:
        DatasetError: a negative size.
    """
    if size is None:
        return TaskRows(rows)
    if size < 0:
        raise DatasetError(f"size must be 0 or more, not {size}")
    if size > len(rows):
        logger.info("%d tasks were asked for; the data set has %d, and all of them are taken", size, len(rows))
    return TaskRows(random.Random(seed).sample(list(rows), min(size, len(rows))))


T = TypeVar("T")

SPLIT_NAMES: dict[Split, tuple[str, ...]] = {
    "train": ("train",),
    "val": ("validation", "val", "valid", "dev", "eval"),
    "test": ("test",),
}
"""Names of the splits in published data sets."""

ALL = "all"


def select(parts: Mapping[str, Sequence[T]], split: str, key: Callable[[T], str], *, ending: str = "") -> list[T]:
    """Return the rows of "train", "val" or "test" out of the published parts, or of all parts for "all".

    A data set of one part is divided 8 : 1 : 1, with at least one question each for val and test from three questions
    on. Otherwise a split that was not published is taken out of the part for training.

    Args:
        parts: the rows by the name of the published split.
        split: split to return.
        key: returns the question of a row.
        ending: suffix that names of parts may have, such as "prefs" in "train_prefs".

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
    names: dict[Split, str | None] = {}
    for known, aliases in SPLIT_NAMES.items():
        candidates = [name for alias in aliases for name in (f"{alias}_{ending}", alias)]
        names[known] = next((name for name in candidates if name in parts), None)
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


def final_answer(value: Any) -> str | None:
    """Return a right answer (text, a number, true or false, or a list of these) as text; None for anything else, and
    for NaN, which pandas writes in place of a missing number.

    Of a worked solution it is the text after the last "####", which may be "". Numbers there, and in a list, lose their
    thousands commas.
    """
    if isinstance(value, list) and value and all(isinstance(item, str | int | float) for item in value):
        return "[" + ", ".join(ungrouped(str(item)) for item in value) + "]"
    is_nan = value != value
    if not isinstance(value, str | int | float) or is_nan or not str(value).strip():
        return None
    text = str(value).strip()
    return ungrouped(text.rpartition("####")[2].strip()) if "####" in text else text


_WORDS: Final = re.compile(r"\d+(?:[.,]\d+)*|\w+")
_NUMBER: Final = re.compile(r"\d+(?:[.,]\d+)*")
_EXAMPLES: Final = 3


def split_overlap(seen: Sequence[str], questions: Sequence[str], ngram: int) -> dict[str, Any]:
    """Measure contamination: how many `questions` are among those `seen`, verbatim, with other numbers, or in part.

    Case, spaces and punctuation make no difference. Reworded questions share n-grams of words, in which all numbers are
    alike (Brown et al. 2020, appendix C, use n of 8 to 13); a shorter question is one n-gram.

    Returns:
        `questions`: their number. `same`: how many were seen. `same_but_numbers`: how many were seen with the same or
        other numbers. `with_ngram`: how many share an n-gram with a seen one. `ngrams_seen`: the mean share of a
        question's n-grams that were seen. `examples`: the first questions that were seen, verbatim or with other
        numbers.
    """

    def read(question: str) -> tuple[tuple[str, ...], tuple[str, ...], set[tuple[str, ...]]]:
        """Return the words, the words with all numbers alike, and the n-grams of the latter."""
        words = tuple(_WORDS.findall(question.casefold()))
        template = tuple("#" if _NUMBER.fullmatch(word) else word for word in words)
        starts = range(max(1, len(words) - ngram + 1))
        return words, template, {template[start : start + ngram] for start in starts}

    seen_words: set[tuple[str, ...]] = set()
    seen_templates: set[tuple[str, ...]] = set()
    seen_ngrams: set[tuple[str, ...]] = set()
    for question in seen:
        words, template, ngrams = read(question)
        seen_words.add(words)
        seen_templates.add(template)
        seen_ngrams |= ngrams
    same = with_ngram = 0
    share = 0.0
    similar: list[str] = []
    for question in questions:
        words, template, ngrams = read(question)
        common = len(ngrams & seen_ngrams)
        same += words in seen_words
        with_ngram += common > 0
        share += common / len(ngrams)
        if template in seen_templates:
            similar.append(question)
    return {
        "questions": len(questions),
        "same": same,
        "same_but_numbers": len(similar),
        "with_ngram": with_ngram,
        "ngrams_seen": share / len(questions) if questions else 0.0,
        "examples": similar[:_EXAMPLES],
    }


def overlap_of_splits(splits: Mapping[str, Sequence[str]], ngram: int) -> list[dict[str, Any]]:
    """Return `split_overlap` of each split (`asked`) with every one before it (`seen`); empty splits are left out."""
    named = [(name, questions) for name, questions in splits.items() if questions]
    return [
        {"seen": earlier, "asked": name, **split_overlap(earlier_questions, questions, ngram)}
        for index, (name, questions) in enumerate(named)
        for earlier, earlier_questions in named[:index]
    ]
