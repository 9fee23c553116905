"""SIGTERM handled like Ctrl-C: containers, systemd, Slurm and `kill` end a run as cleanly as a person at its terminal.

    with stops_cleanly():                       # the first SIGTERM does the same as Ctrl-C, then SystemExit(143)
        with deferred_interrupt(stop):          # neither interrupts: the work checks the event `stop` between steps
            ...
    await serve_until_signal(runs, stop)        # a server runs until the first signal, then drains

A second signal ends the process at once, with exit code 143 (SIGTERM) or 130 (SIGINT). Python runs signal handlers in
the main thread: in other threads these functions change nothing.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, Final

TERMINATED: Final = 128 + signal.SIGTERM
"""Exit code after SIGTERM: 143."""

_ALIVE_CHECK_SECONDS: Final = 1.0

_sigterm_came = threading.Event()


class Terminated(SystemExit):
    """SIGTERM ended the work, which has cleaned up."""

    def __init__(self) -> None:
        super().__init__(TERMINATED)


@contextmanager
def stops_cleanly() -> Iterator[None]:
    """Make the first SIGTERM raise KeyboardInterrupt, as Ctrl-C does.

    It changes nothing inside of another such block, in a process that handles or ignores SIGTERM itself, and in threads
    other than the main thread.

    Raises:
        Terminated: SIGTERM interrupted the block. A block that handles the interrupt and returns is not affected.
    """
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return
    _sigterm_came.clear()

    def on_signal(number: int, frame: FrameType | None) -> None:
        _sigterm_came.set()
        signal.signal(signal.SIGTERM, _end_at_once)
        interrupt = signal.getsignal(signal.SIGINT)  # inside of asyncio.run it is that of the event loop
        if not callable(interrupt):  # a shell ignores it for commands that are started with &
            raise KeyboardInterrupt
        signal.signal(signal.SIGINT, _end_at_once)
        interrupt(signal.SIGINT, frame)

    signal.signal(signal.SIGTERM, on_signal)
    try:
        yield
    except KeyboardInterrupt as error:
        if _sigterm_came.is_set():
            raise Terminated from error
        raise
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if signal.getsignal(signal.SIGINT) == _end_at_once:
            signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def deferred_interrupt(stop: threading.Event) -> Iterator[None]:
    """Set an event at the first SIGINT or SIGTERM instead of interrupting; a second signal ends the process.

    Raises:
        KeyboardInterrupt: a signal came; raised at the end of the block.
    """
    first: list[int] = []
    before = _handlers()

    def on_signal(number: int, frame: FrameType | None) -> None:
        first.append(number)
        stop.set()
        for each in before:
            signal.signal(each, _end_at_once)

    for each in before:
        signal.signal(each, on_signal)
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
    if first:
        handler = before[first[0]]
        if not callable(handler):
            raise KeyboardInterrupt
        handler(first[0], None)


async def serve_until_signal(runs: Callable[[], bool], stop: Callable[[], Awaitable[None]]) -> bool:
    """Wait for the first SIGINT or SIGTERM, then call `stop`; a second signal ends the process.

    `stop` is also called if the server ends by itself, and if this task is cancelled.

    Args:
        runs: returns whether the server still runs; called each second.
        stop: ends the server.

    Returns:
        False if the server ended by itself.
    """
    signalled = asyncio.Event()
    loop = asyncio.get_running_loop()
    before = _handlers()

    def on_signal(number: int, frame: FrameType | None) -> None:
        for each in before:
            signal.signal(each, _end_at_once)
        loop.call_soon_threadsafe(signalled.set)

    for each in before:
        signal.signal(each, on_signal)
    try:
        try:
            while runs() and not signalled.is_set():
                with suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(signalled.wait(), _ALIVE_CHECK_SECONDS)
        finally:
            await stop()
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
    return signalled.is_set()


def terminated() -> bool:
    """Return True if SIGTERM has come: a KeyboardInterrupt was then not caused by Ctrl-C."""
    return _sigterm_came.is_set()


def _handlers() -> dict[int, Any]:
    """Return the handlers of SIGINT and SIGTERM, without ignored signals and handlers that Python cannot restore.

    Outside of the main thread there are none.
    """
    if threading.current_thread() is not threading.main_thread():
        return {}
    handlers = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    return {each: handler for each, handler in handlers.items() if handler not in (signal.SIG_IGN, None)}


def _end_at_once(number: int, frame: FrameType | None) -> None:
    os.write(2, b"a second signal: ended at once\n")
    os._exit(128 + number)
