"""Seeds: every draw of a run depends on the run's seed and on its purpose alone, so that a run can be resumed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

import numpy as np

from ..types import Dataset


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


def tasks_of_step(seed: int, size: int, step: int, per_step: int, kinds: Sequence[str] | None = None) -> list[int]:
    """Return the rows that step number `step` (from 0) draws, going through all rows before any comes again."""
    return tasks_from(seed, size, step * per_step, per_step, kinds)


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
