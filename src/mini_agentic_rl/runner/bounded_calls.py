"""Calls of the user's code with a time limit.

Async code runs as a task, which is cancelled at a time-out. Sync code runs in a daemon thread, which cannot be stopped:
after the time-out it is abandoned, and spans that it emits later are dropped.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from ..processes import in_daemon_thread

logger = logging.getLogger(__name__)

_CANCEL_GRACE_SECONDS = 1.0


class OutOfTimeError(TimeoutError):
    """A call took longer than its limit."""


class StoppedError(Exception):
    """The run ended during the call."""


class ExitedError(Exception):
    """The called code tried to end the process, or cancelled its own task."""


async def call_bounded(
    func: Callable[..., Any],
    args: list[Any],
    kwargs: dict[str, Any],
    *,
    deadline: float | None,
    stop: asyncio.Future[Any] | None,
) -> Any:
    """Call `func`, sync or async, and return its result.

    Args:
        func: the function.
        args: its positional arguments.
        kwargs: its keyword arguments.
        deadline: time of the event loop by which it must have returned; None is no limit.
        stop: the call is abandoned once this future is done; its result, if it is a string, is the reason.

    Raises:
        OutOfTimeError: the deadline passed. The call was cancelled, or its thread abandoned.
        StoppedError: `stop` was done first.
        ExitedError: the code called `sys.exit`, or cancelled the task that it runs in.
        Exception: whatever the code raised.
    """
    work = asyncio.ensure_future(_invoke(func, args, kwargs))
    work.add_done_callback(_retrieve)
    try:
        await wait_until_done(work, stop, deadline)
    except asyncio.CancelledError:
        work.cancel()
        raise
    if work.cancelled():
        raise ExitedError(f"{_label(func)} cancelled itself")
    if work.done():
        return work.result()
    work.cancel()
    await asyncio.wait({work}, timeout=_CANCEL_GRACE_SECONDS)
    if not work.done():
        logger.warning("%s ignores its cancellation and goes on in the background", _label(func))
    if stop is not None and stop.done():
        raise StoppedError(str(stop.result() or "the run was stopped"))
    raise OutOfTimeError(f"{_label(func)} did not return in time")


async def wait_until_done(
    work: asyncio.Future[Any], stop: asyncio.Future[Any] | None, deadline: float | None = None
) -> None:
    """Wait until `work` or `stop` is done, or the deadline (time of the event loop) has passed."""
    timeout = None if deadline is None else max(0.0, deadline - asyncio.get_running_loop().time())
    futures = {work} if stop is None else {work, stop}
    await asyncio.wait(futures, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)


async def _invoke(func: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]) -> Any:
    try:
        if inspect.iscoroutinefunction(func):
            return await func(*args, **kwargs)
        result = await in_daemon_thread(partial(func, *args, **kwargs), f"call-{_label(func)}")
        return await result if inspect.isawaitable(result) else result
    except (SystemExit, KeyboardInterrupt) as error:
        raise ExitedError(f"{_label(func)} raised {type(error).__name__}: {error}") from error


def _label(func: Callable[..., Any]) -> str:
    """Return the name of a function for messages."""
    return str(getattr(func, "__qualname__", type(func).__name__))


def _retrieve(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()
