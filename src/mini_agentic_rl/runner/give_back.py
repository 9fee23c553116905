"""Giving a rollout back to the queue when its attempt was broken off and nobody can say that the agent failed."""

from __future__ import annotations

import logging

from ..store import LIVE_ATTEMPT_STATUSES, LightningStore

logger = logging.getLogger(__name__)


async def give_back(store: LightningStore, rollout_id: str, attempt_id: str, reason: str) -> bool:
    """End the attempt as `failed` for this reason, and queue its rollout again, which itself does not fail.

    The rollout stays where it is if the attempt no longer drives it. Nothing happens if the attempt has ended or was
    declared unresponsive: then the store has seen to the rollout already. Returns whether the rollout was queued.
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
