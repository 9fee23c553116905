"""Threads of roles, and the delays between restarts."""

from __future__ import annotations

import asyncio
import errno
import threading

import pytest

from mini_agentic_rl.execution.roles import Backoff, RoleThread


def test_delays_double_and_begin_anew_after_a_long_run() -> None:
    backoff = Backoff(first=0.5, longest=30.0, steady=60.0)
    assert [backoff.after_run(1.0) for _ in range(8)] == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    assert backoff.after_run(61.0) == 0.5
    assert backoff.crashes == 1


async def _nothing() -> None:
    pass


def test_a_thread_that_gets_no_event_loop_says_so_and_nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> asyncio.AbstractEventLoop:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(asyncio.events, "new_event_loop", refuse)
    role, raised = RoleThread("runners", _nothing), []

    def start() -> None:
        try:
            role.start()
        except OSError as error:
            raised.append(error)

    starting = threading.Thread(target=start, daemon=True)
    starting.start()
    starting.join(10)
    assert not starting.is_alive()
    assert raised[0].errno == errno.EMFILE
