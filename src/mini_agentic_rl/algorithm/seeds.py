"""Seeds: every draw of a run follows from the run's seed and from what it is for, so that a run can be resumed."""

from __future__ import annotations

import hashlib

import numpy as np


def derive_seed(seed: int, *parts: int | str) -> int:
    """Return a number below 2^63 for one purpose of a run."""
    text = "/".join(str(part) for part in (seed, *parts))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def task_order(seed: int, size: int, epoch: int) -> list[int]:
    """Return the order of a data set's rows in one epoch."""
    return [int(index) for index in np.random.default_rng([seed, epoch]).permutation(size)]


def tasks_of_step(seed: int, size: int, step: int, per_step: int) -> list[int]:
    """Return the rows that step number `step` (from 0) draws, going through all rows before any comes again."""
    return tasks_from(seed, size, step * per_step, per_step)


def tasks_from(seed: int, size: int, first: int, count: int) -> list[int]:
    """Return `count` rows after the first `first` ones of a run, going through all rows before any comes again."""
    orders: dict[int, list[int]] = {}
    rows = []
    for position in range(first, first + count):
        epoch, index = divmod(position, size)
        if epoch not in orders:
            orders[epoch] = task_order(seed, size, epoch)
        rows.append(orders[epoch][index])
    return rows
