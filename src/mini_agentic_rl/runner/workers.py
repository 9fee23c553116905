"""The workers of runners in the store: their names, and the rollouts of lost workers.

The workers of one run are `runner-0`, `runner-1` and so on. Where several runs share a store, each gives its processes
a label: `runner-0@label`.

A worker is silent when its heartbeats stop. The time is measured by the local monotonic clock, and only while the store
answers, so neither clock skew nor an outage of the store makes a worker silent.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from ..logging import Throttle
from ..store import LIVE_ATTEMPT_STATUSES, LightningStore

logger = logging.getLogger(__name__)

_GIVE_BACK_SECONDS = 10.0
_label: list[str] = []


def set_worker_label(label: str | None) -> None:
    """Name the workers of this process with `label` from now on."""
    _label[:] = [] if label is None else [label]


def worker_name(number: int, label: str | None = None) -> str:
    """Return the name of a runner's worker under `label`, or under the label of this process."""
    chosen = label if label is not None else (_label[0] if _label else None)
    return f"runner-{number}" if chosen is None else f"runner-{number}@{chosen}"


async def give_back(store: LightningStore, rollout_id: str, attempt_id: str, reason: str) -> bool:
    """End the attempt as `failed` for this reason, and queue its rollout again; return True if it was queued.

    If a later attempt exists, the rollout is left alone. Nothing happens if the attempt has ended or was declared
    unresponsive: the store has then decided about the rollout already.
    """
    attempts = list(await store.query_attempts(rollout_id))
    attempt = next((each for each in attempts if each.attempt_id == attempt_id), None)
    if attempt is None or attempt.status not in LIVE_ATTEMPT_STATUSES:
        return False
    is_latest = attempt is attempts[-1]
    if is_latest:
        logger.info("rollout %s goes back to the queue: %s", rollout_id, reason)
        await store.update_rollout(rollout_id, status="requeuing")
    await store.update_attempt(rollout_id, attempt_id, status="failed", metadata={**attempt.metadata, "error": reason})
    return is_latest


async def give_back_of_worker(store: LightningStore, worker_id: str, reason: str) -> None:
    """Give back the rollout of a worker that has died, if it ran one. An error of the store is logged."""

    async def give() -> None:
        worker = await store.get_worker_by_id(worker_id)
        if worker is not None and worker.current_rollout_id is not None and worker.current_attempt_id is not None:
            await give_back(store, worker.current_rollout_id, worker.current_attempt_id, reason)

    try:
        await asyncio.wait_for(give(), _GIVE_BACK_SECONDS)
    except Exception as error:  # the store is out of reach: its health check will find the attempt
        logger.warning("the rollout of %s could not be given back: %r", worker_id, error)


_CHECKS = 6
"""Checks of the workers within `silent_seconds`."""


class SilentWorkers:
    """Gives back the rollouts of silent workers.

    Args:
        store: the store of the workers.
        silent_seconds: time without a heartbeat after which a worker with a rollout counts as lost.
        now: a monotonic clock, in seconds.
    """

    def __init__(self, store: LightningStore, silent_seconds: float, now: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._silent_seconds = silent_seconds
        self._now = now
        self._last_check = now()
        self._heard: dict[str, tuple[float, float]] = {}
        """By worker: the time of its latest heartbeat in the store, and the local time at which it was first seen."""

    async def check(self) -> int:
        """Check all workers once; return the number of rollouts that were queued again.

        Raises:
            Exception: the store does not answer.
        """
        workers = await self._store.query_workers()
        now = self._now()
        if now - self._last_check > self._silent_seconds / 2:  # the store did not answer meanwhile
            self._heard.clear()
        self._last_check = now
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
    """Give back the rollouts of workers that fall silent, until cancelled."""
    workers, throttle = SilentWorkers(store, silent_seconds), Throttle()
    while True:
        await asyncio.sleep(silent_seconds / _CHECKS)
        try:
            await workers.check()
        except Exception as error:  # the store does not answer: try again
            if throttle.due(repr(error)):
                logger.warning("could not check for lost runners: %s", error)
