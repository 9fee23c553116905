"""Ending a process in four steps, each after more patience than a well-behaved one needs."""

from __future__ import annotations

import asyncio
import logging
import signal
from dataclasses import dataclass

from ..runner.processes import Child

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Patience:
    """How long to wait between the steps, in seconds."""

    graceful_timeout: float
    terminate_timeout: float

    @property
    def total(self) -> float:
        """How long all four steps can take."""
        return self.graceful_timeout + 2 * self.terminate_timeout + 5.0


async def stop(child: Child, patience: Patience) -> int:
    """Tell it to stop, then SIGINT, then SIGTERM, then SIGKILL; the last two to everything that it has started as well.

    Returns its exit code when nothing of it is left. Cancelled, it goes to the last step at once.
    """
    try:
        child.send(("stop",))
        if not await _ends(child, patience.graceful_timeout):
            logger.warning(
                "%s did not stop within graceful_timeout=%g s and is interrupted", child.name, patience.graceful_timeout
            )
            child.signal(signal.SIGINT)
            if not await _ends(child, patience.terminate_timeout):
                logger.warning(
                    "%s did not stop within terminate_timeout=%g s and is ended", child.name, patience.terminate_timeout
                )
        await asyncio.to_thread(child.end, patience.terminate_timeout)
    except asyncio.CancelledError:
        child.end(0)
        raise
    return await child.exited


async def _ends(child: Child, seconds: float) -> bool:
    await asyncio.wait({child.exited}, timeout=seconds)
    return not child.running
