"""Runs have event loops of their own, which cannot begin inside another one, as a notebook has it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def outside_of_loops(call: Callable[[], T]) -> T:
    """What `call` returns or raises: here, or in a thread where an event loop is running here. Blocks either way."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return call()
    with ThreadPoolExecutor(1, "training") as thread:
        return thread.submit(call).result()
