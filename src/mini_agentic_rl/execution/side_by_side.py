"""Both roles of a run: one in the calling thread, the other's processes watched from a thread of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from .events import ExecutionEvent
from .roles import RoleThread


class OtherRole(Protocol):
    """The processes of a role, as their starter sees them."""

    async def run(self, event: ExecutionEvent) -> None:
        """Keep them until they have ended or the event is set; none is left afterwards."""

    def kill(self) -> None:
        """End them at once, from any thread."""


def run_side_by_side(
    mine: Callable[[], Coroutine[Any, Any, None]], other: OtherRole, event: ExecutionEvent, patience: float
) -> None:
    """Run `mine` here and the other role from another thread, and end both however either ends.

    Args:
        patience: seconds that ending the other role can take.

    Raises:
        Exception: what either role raised.
        KeyboardInterrupt: the run was interrupted; everything has been stopped.
    """
    thread = RoleThread("processes", lambda: other.run(event))
    try:
        thread.start()
        asyncio.run(mine())
    except asyncio.CancelledError:
        event.set()
        thread.join(patience)
        if thread.error is None:
            raise
    finally:
        event.set()
        try:
            thread.join(patience)
        except BaseException:  # interrupted again
            other.kill()
            raise
    if thread.error is not None:
        raise thread.error
