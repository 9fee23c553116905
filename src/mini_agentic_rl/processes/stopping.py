"""SIGTERM as Ctrl-C: what containers, systemd, Slurm and `kill` send ends a run as cleanly as a person at its terminal.

    with stops_cleanly():                       # the first SIGTERM does in here what Ctrl-C does; then SystemExit(143)
        with asked_to_stop(asked):              # in here neither interrupts: the work looks at `asked` where it can
            ...
    await until_asked_to_stop(runs, stop)       # in here too: a server goes on until then, and ends in its own way

A second signal ends the process at once, with exit code 143 and whatever was last on disk. Only the main thread hears
signals: elsewhere these change nothing.
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
"""Exit code of what SIGTERM has ended: 143."""

_ALIVE_CHECK_SECONDS: Final = 1.0

_came = threading.Event()


class Terminated(SystemExit):
    """Report that the work was ended by SIGTERM, after it has cleaned up."""

    def __init__(self) -> None:
        super().__init__(TERMINATED)


@contextmanager
def stops_cleanly() -> Iterator[None]:
    """Let the first SIGTERM do what Ctrl-C does, so that all that handles a KeyboardInterrupt handles it.

    Within another such block, where the process has a handler of its own or ignores SIGTERM, and off the main thread it
    changes nothing.

    Raises:
        Terminated: SIGTERM came, and the block was interrupted by it. A block that ends in spite of it has its result.
    """
    if not _may_listen() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return
    _came.clear()

    def on_signal(number: int, frame: FrameType | None) -> None:
        _came.set()
        signal.signal(signal.SIGTERM, _end_at_once)
        interrupt = signal.getsignal(signal.SIGINT)  # inside of asyncio.run that is the event loop's own
        if not callable(interrupt):  # a shell has it ignored in what it starts with &
            raise KeyboardInterrupt
        signal.signal(signal.SIGINT, _end_at_once)
        interrupt(signal.SIGINT, frame)

    signal.signal(signal.SIGTERM, on_signal)
    try:
        yield
    except KeyboardInterrupt as error:
        if _came.is_set():
            raise Terminated from error
        raise
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if signal.getsignal(signal.SIGINT) == _end_at_once:
            signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def asked_to_stop(asked: threading.Event) -> Iterator[None]:
    """Have an event set by the first SIGINT or SIGTERM, in place of an interruption; a second one ends at once.

    Raises:
        KeyboardInterrupt: at the end of the block, if one came.
    """
    first: list[int] = []
    before = _handlers()

    def on_signal(number: int, frame: FrameType | None) -> None:
        first.append(number)
        asked.set()
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


async def until_asked_to_stop(runs: Callable[[], bool], stop: Callable[[], Awaitable[None]]) -> bool:
    """Wait for the first SIGINT or SIGTERM, which interrupts nothing in here, then stop; a second one ends at once.

    What has ended by itself, and a task that is cancelled, are stopped as well.

    Args:
        runs: whether it still runs; asked each second.
        stop: ends it.

    Returns:
        False if it had ended before it was asked to.
    """
    asked = asyncio.Event()
    loop = asyncio.get_running_loop()
    before = _handlers()

    def on_signal(number: int, frame: FrameType | None) -> None:
        for each in before:
            signal.signal(each, _end_at_once)
        loop.call_soon_threadsafe(asked.set)

    for each in before:
        signal.signal(each, on_signal)
    try:
        try:
            while runs() and not asked.is_set():
                with suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(asked.wait(), _ALIVE_CHECK_SECONDS)
        finally:
            await stop()
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
    return asked.is_set()


def terminated() -> bool:
    """Return whether SIGTERM has come: a KeyboardInterrupt is no Ctrl-C then."""
    return _came.is_set()


def _may_listen() -> bool:
    return threading.current_thread() is threading.main_thread()


def _handlers() -> dict[int, Any]:
    """Return who hears SIGINT and SIGTERM; left out is what is ignored, and what is not of Python and cannot be put
    back. Off the main thread there are none."""
    if not _may_listen():
        return {}
    found = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    return {each: handler for each, handler in found.items() if handler not in (signal.SIG_IGN, None)}


def _end_at_once(number: int, frame: FrameType | None) -> None:
    os.write(2, b"a second signal: ended at once\n")
    os._exit(128 + number)
