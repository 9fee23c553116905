"""What every task data set gives: rows with a question and an answer."""

from __future__ import annotations

import difflib
import hashlib
import logging
import random
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

from ..errors import UserError

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
        """The row at an integer, or the `TaskRows` of a slice."""
        return TaskRows(self._rows[index]) if isinstance(index, slice) else self._rows[index]


def meant(name: str, known: Sequence[str]) -> str:
    """The known name that is near, as the end of a complaint; nothing where none is."""
    near = difflib.get_close_matches(name, known, n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""


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
    """The split that everything with this key belongs to: 8 of 10 keys are for training, 1 each for the others."""
    return _SHARES[int(digest(key), 16) % len(_SHARES)]


def choose(rows: Sequence[Row], size: int | None, seed: int) -> TaskRows:
    """`size` of the rows, drawn without replacement; all of them in their order when `size` is None.

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
