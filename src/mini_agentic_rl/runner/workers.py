"""A runner's worker as the store knows it: its name, and the attempt that it gives back.

The workers of one run are `runner-0`, `runner-1` and so on. Where runners of several runs share a store, each run gives
its processes a label, and they are `runner-0@label`.
"""

from __future__ import annotations

import logging

from ..store import LIVE_ATTEMPT_STATUSES, LightningStore

logger = logging.getLogger(__name__)

_label: list[str] = []


def set_worker_label(label: str | None) -> None:
    """Name the workers of this process with `label` from now on."""
    _label[:] = [] if label is None else [label]


def worker_name(number: int, label: str | None = None) -> str:
    """Return the name of a runner's worker under `label`, or under the label of this process."""
    chosen = label if label is not None else (_label[0] if _label else None)
    return f"runner-{number}" if chosen is None else f"runner-{number}@{chosen}"


async def give_back(store: LightningStore, rollout_id: str, attempt_id: str, reason: str) -> bool:
    """End the attempt as `failed` for this reason, and queue its rollout again, which itself does not fail.

    The rollout stays where it is if the attempt no longer drives it. Nothing happens if the attempt has ended or was
    declared unresponsive: then the store has seen to the rollout already. Return True if the rollout was queued.
    """
    attempts = list(await store.query_attempts(rollout_id))
    attempt = next((one for one in attempts if one.attempt_id == attempt_id), None)
    if attempt is None or attempt.status not in LIVE_ATTEMPT_STATUSES:
        return False
    drives = attempt is attempts[-1]
    if drives:
        logger.info("rollout %s goes back to the queue: %s", rollout_id, reason)
        await store.update_rollout(rollout_id, status="requeuing")
    await store.update_attempt(rollout_id, attempt_id, status="failed", metadata={**attempt.metadata, "error": reason})
    return drives


async def give_back_of_worker(store: LightningStore, worker_id: str, reason: str) -> bool:
    """Give back what a worker that has died was running; False if it ran nothing."""
    worker = await store.get_worker_by_id(worker_id)
    if worker is None or worker.current_rollout_id is None or worker.current_attempt_id is None:
        return False
    return await give_back(store, worker.current_rollout_id, worker.current_attempt_id, reason)
