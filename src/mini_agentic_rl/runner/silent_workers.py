"""Rollouts of runners on a lost machine go back to the queue: nobody is left there to give them back.

A worker is silent when the store hears no heartbeat of it. That is judged by the clock of whoever looks, and only while
the store answers, so that clocks which disagree and a store that was away make no worker silent.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from ..logging import Throttle
from ..store import LightningStore
from .workers import give_back

logger = logging.getLogger(__name__)

_LOOKS = 6
"""Looks at the workers in the time after which one is silent."""


class SilentWorkers:
    """Gives back what silent workers were running.

    Args:
        store: tells of the workers.
        silent_seconds: time without a heartbeat after which a worker that runs something is taken for lost.
        now: a clock that nobody sets, in seconds.
    """

    def __init__(self, store: LightningStore, silent_seconds: float, now: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._silent_seconds = silent_seconds
        self._now = now
        self._last_look = now()
        self._heard: dict[str, tuple[float, float]] = {}
        """By worker: the time of its latest heartbeat in the store, and when it was first seen here."""

    async def look(self) -> int:
        """Look once; return how many rollouts were queued again.

        Raises:
            Exception: the store does not answer.
        """
        workers = await self._store.query_workers()
        now = self._now()
        if now - self._last_look > self._silent_seconds / 2:  # nobody could be heard meanwhile
            self._heard.clear()
        self._last_look = now
        queued = 0
        for worker in workers:
            beat = worker.last_heartbeat_time
            if beat is None or worker.current_rollout_id is None or worker.current_attempt_id is None:
                self._heard.pop(worker.worker_id, None)
                continue
            known, since = self._heard.get(worker.worker_id, (beat, now))
            if known != beat:
                since = now
            self._heard[worker.worker_id] = (beat, since)
            if now - since > self._silent_seconds:
                reason = f"its runner {worker.worker_id} has sent no heartbeat for {self._silent_seconds:g} s"
                ids = worker.current_rollout_id, worker.current_attempt_id
                queued += await give_back(self._store, *ids, reason)
        return queued


async def watch_workers(store: LightningStore, silent_seconds: float) -> None:
    """Give back what workers that fall silent were running, until cancelled."""
    silent, told = SilentWorkers(store, silent_seconds), Throttle()
    while True:
        await asyncio.sleep(silent_seconds / _LOOKS)
        try:
            await silent.look()
        except Exception as error:  # the store is away; the next look finds it again
            if told.due(repr(error)):
                logger.warning("could not look for lost runners: %s", error)
