"""A thread of a rollout's own, for a world whose code blocks.

The threads that an event loop lends out are few, and are waited for when the program ends. A world that hangs in one of
them would hold up the others, so each rollout has its own, which nobody waits for.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import queue
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

T = TypeVar("T")


class OwnThread:
    """Runs calls one after another on one thread, from `async with` until its end or the end of a call that hangs."""

    def __init__(self, name: str) -> None:
        """`name` is the thread's."""
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)

    async def __aenter__(self) -> OwnThread:
        self._thread.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._calls.put(None)

    async def call(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Return what the function returns; where the caller is cancelled meanwhile, the call goes on unheard.

        Raises:
            Exception: whatever the function raised; a StopIteration as a RuntimeError.
        """
        loop, context = asyncio.get_running_loop(), contextvars.copy_context()
        done: asyncio.Future[T] = loop.create_future()

        def run() -> None:
            result: Any = None
            failure: BaseException | None = None
            try:
                result = context.run(function, *args, **kwargs)
            except BaseException as error:  # handed to the task that waits
                failure = error
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
                loop.call_soon_threadsafe(_settle, done, result, failure)

        self._calls.put(run)
        return await done

    def last(self, function: Callable[[], Any]) -> None:
        """Call a function after all others, without waiting for it or for what it raises."""

        def run() -> None:
            with contextlib.suppress(Exception):
                function()

        self._calls.put(run)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call()


def _settle(done: asyncio.Future[Any], result: Any, failure: BaseException | None) -> None:
    if done.done():
        return
    if failure is None:
        done.set_result(result)
    elif isinstance(failure, Exception) and not isinstance(failure, StopIteration):
        done.set_exception(failure)
    else:
        done.set_exception(RuntimeError(f"the call raised {type(failure).__name__}: {failure}"))
