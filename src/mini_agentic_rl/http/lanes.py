"""Work in proportion to a request's size, done beside the event loop.

What is small is done where it is asked for. What is larger goes to a thread, and what is large to one thread that all
such work of the process shares: any number of large requests take the memory of one, and a request of ordinary size
never waits for them.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, TypeVar

T = TypeVar("T")

SMALL: Final = 16 * 1024
"""Bytes, or characters, whose handling is not worth a thread."""
LARGE: Final = 1024 * 1024
"""Bytes, or characters, from which on one piece of work is done at a time."""


class _Lanes:
    """The threads, made when they are first needed."""

    def __init__(self) -> None:
        self.ordinary = ThreadPoolExecutor(2, "request")
        self.large = ThreadPoolExecutor(1, "large request")


_lanes = _Lanes()


def _begin_anew() -> None:
    global _lanes
    _lanes = _Lanes()  # a forked process has none of the threads


os.register_at_fork(after_in_child=_begin_anew)


async def off_loop(size: int, work: Callable[[], T]) -> T:
    """Return the result of `work`, which is done here if its `size` in bytes is small, and in a thread otherwise.

    A caller that is cancelled leaves work that has begun to end by itself; what has not begun is dropped.
    """
    if size <= SMALL:
        return work()
    pool = _lanes.large if size > LARGE else _lanes.ordinary
    return await asyncio.get_running_loop().run_in_executor(pool, partial(work))
