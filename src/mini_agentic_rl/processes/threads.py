"""Run blocking code in a thread and await it."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from ..errors import fit_for_future

T = TypeVar("T")

_cancelled: contextvars.ContextVar[threading.Event] = contextvars.ContextVar("cancelled")


async def in_cancellable_thread(call: Callable[[], T]) -> T:
    """Run `call` in a thread and return its result. If this is cancelled, its next `check_cancelled` raises."""
    event = threading.Event()
    _cancelled.set(event)
    try:
        return await asyncio.to_thread(call)
    except asyncio.CancelledError:
        event.set()
        raise


def check_cancelled() -> None:
    """Raise CancelledError if the `in_cancellable_thread` that runs this code was cancelled."""
    event = _cancelled.get(None)
    if event is not None and event.is_set():
        raise asyncio.CancelledError


def in_daemon_thread(call: Callable[[], T], name: str) -> asyncio.Future[T]:
    """Start `call` in a daemon thread that has the caller's context variables; return the future of its result.

    Cancelling the future does not end the thread, whose result is then ignored.
    """
    loop, context = asyncio.get_running_loop(), contextvars.copy_context()
    future: asyncio.Future[T] = loop.create_future()

    def work() -> None:
        value: Any = None
        error: BaseException | None = None
        try:
            value = context.run(call)
        except BaseException as raised:  # raised again where the future is awaited
            error = fit_for_future(raised, name)
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
            loop.call_soon_threadsafe(_settle, future, value, error)

    threading.Thread(target=work, name=name, daemon=True).start()
    return future


def _settle(future: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
    """Give a future its result or its error, unless it is cancelled."""
    if future.done():
        return
    if error is None:
        future.set_result(value)
    else:
        future.set_exception(error)
