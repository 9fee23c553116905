"""A role in a thread of its own tells who started it why it could not begin."""

from __future__ import annotations

import asyncio
import errno
import threading

import pytest

from mini_agentic_rl.execution.roles import RoleThread


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
