"""Calls of the user's code, bounded so that it can neither hang nor end the runner.

Async code runs as a task of its own and is cancelled; sync code runs in a daemon thread of its own, which nothing can
stop: when its time is up it is given up and goes on in the background, with its later spans dropped. An agent that must
be ended for certain runs in a process of its own, see `isolation`; `AgentCall` and `AgentReturn` are what it is sent
and what it sends back, besides spans and store calls.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..litagent import RolloutOutcome
from ..types import AttemptedRollout, NamedResources, Span

logger = logging.getLogger(__name__)

_CANCEL_GRACE_SECONDS = 1.0
ORPHAN_SECONDS = 0.5
"""Seconds that the process of an agent may take to end after its runner is gone."""


class OutOfTimeError(TimeoutError):
    """Report that a call took longer than it may."""


class StoppedError(Exception):
    """Report that the run ended while the call was under way."""


class ExitedError(Exception):
    """Report that the called code tried to end the process, or its own task."""


async def call_bounded(
    func: Callable[..., Any],
    args: list[Any],
    kwargs: dict[str, Any],
    *,
    deadline: float | None,
    stop: asyncio.Future[Any] | None,
) -> Any:
    """Call `func`, sync or async, and return what it returns.

    Args:
        deadline: time of the event loop by which it must have returned; None is no limit.
        stop: the call is given up once this future is done; its result, if it is a text, says why.

    Raises:
        OutOfTimeError: the deadline passed. The call was cancelled, or its thread given up.
        StoppedError: `stop` was done first.
        ExitedError: the code called `sys.exit`, or cancelled the task that it runs in.
        Exception: whatever the code raised.
    """
    loop = asyncio.get_running_loop()
    work: asyncio.Task[Any] = loop.create_task(_invoke(func, args, kwargs))
    work.add_done_callback(_retrieve)
    waiting: set[asyncio.Future[Any]] = {work} if stop is None else {work, stop}
    try:
        timeout = None if deadline is None else max(0.0, deadline - loop.time())
        await asyncio.wait(waiting, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError:
        work.cancel()
        raise
    if work.cancelled():
        raise ExitedError(f"{label(func)} cancelled itself")
    if work.done():
        return work.result()
    work.cancel()
    await asyncio.wait({work}, timeout=_CANCEL_GRACE_SECONDS)
    if not work.done():
        logger.warning("%s ignores its cancellation and goes on in the background", label(func))
    if stop is not None and stop.done():
        raise StoppedError(why_stopped(stop))
    raise OutOfTimeError(f"{label(func)} did not return in time")


async def _invoke(func: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]) -> Any:
    try:
        if inspect.iscoroutinefunction(func):
            return await func(*args, **kwargs)
        result = await _in_thread(func, args, kwargs)
        return await result if inspect.isawaitable(result) else result
    except (SystemExit, KeyboardInterrupt) as error:
        raise ExitedError(f"{label(func)} raised {type(error).__name__}: {error}") from error


async def _in_thread(func: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]) -> Any:
    loop, context = asyncio.get_running_loop(), contextvars.copy_context()
    done: asyncio.Future[None] = loop.create_future()
    results: list[Any] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(context.run(func, *args, **kwargs))
        except BaseException as error:  # handed to the task that waits
            errors.append(error)
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
            loop.call_soon_threadsafe(settle, done)

    threading.Thread(target=run, name=f"call-{label(func)}", daemon=True).start()
    await done
    if errors:
        raise errors[0]
    return results[0]


def settle(future: asyncio.Future[Any] | None, value: Any = None, error: Exception | None = None) -> None:
    """Give a future its result, or its error, unless nobody waits for it any more."""
    if future is None or future.done():
        return
    if error is None:
        future.set_result(value)
    else:
        future.set_exception(error)


def why_stopped(stop: asyncio.Future[Any]) -> str:
    """Return the reason that the future which ended a call gives."""
    return str(stop.result() or "the run was stopped")


def label(func: Callable[..., Any]) -> str:
    """Return the name of a function for messages."""
    return str(getattr(func, "__qualname__", type(func).__name__))


def _retrieve(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()


@dataclass(frozen=True)
class AgentCall:
    """The arguments of a call of the agent, and the trace that it continues."""

    rollout: AttemptedRollout
    resources: NamedResources
    trace_root: Any
    recorded: list[Span]


@dataclass(frozen=True)
class AgentReturn:
    """The outcome of a call, and the rollout's metadata as the agent has changed them."""

    outcome: RolloutOutcome
    metadata: dict[str, Any]
