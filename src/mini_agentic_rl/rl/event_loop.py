"""Run code with an event loop of its own where another loop runs already, as in a notebook."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def outside_of_loops(call: Callable[[], T]) -> T:
    """Return or raise what `call` does: here, or in a thread where an event loop runs here. Block either way."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return call()
    with ThreadPoolExecutor(1, "training") as thread:
        return thread.submit(call).result()
