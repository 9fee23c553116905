"""Which rows of a data set belong to a split.

A split that was published is taken as it is. Any other is a tenth of the questions of what there is, chosen by the
hash of the question, so that a question is in one split only, whatever the order of the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeVar

from .rows import DatasetError, Split, check_split, digest, split_of

T = TypeVar("T")

SPLIT_NAMES: dict[Split, tuple[str, ...]] = {
    "train": ("train",),
    "val": ("validation", "val", "valid", "dev", "eval"),
    "test": ("test",),
}
"""What the splits are called by those who publish them."""

ALL = "all"


def select(parts: Mapping[str, Sequence[T]], split: str, key: Callable[[T], str], *, ending: str = "") -> list[T]:
    """The rows of "train", "val" or "test" out of the published parts, or those of all parts for "all".

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
    """The keys of one split: a tenth each for val and test (at least one from three on), else train."""
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
