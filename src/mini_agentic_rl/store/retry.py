"""Queue failed rollouts again. A failed rollout is final, so the second try is a new rollout of the same task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ..types import EnqueueRolloutRequest, Rollout
from .base import LightningStore

RETRY_OF: Final = "retry_of"
"""Key in the metadata of the new rollout: the id of the rollout that failed."""


async def retry_rollouts(store: LightningStore, rollout_ids: Sequence[str] | None = None) -> list[Rollout]:
    """Queue each failed rollout again as a new one, with the same input, mode, resources, config and metadata.

    Args:
        store: Store of the rollouts.
        rollout_ids: Ids of the rollouts; None: every failed rollout that has not been queued again before.

    Returns:
        The new rollouts, in the order of the old ones; `metadata["retry_of"]` names the old one.

    Raises:
        ValueError: an id names no rollout, or one that has not failed; then none is queued.
    """
    if rollout_ids is None:
        retried = {rollout.metadata.get(RETRY_OF) for rollout in await store.query_rollouts()}
        failed = await store.query_rollouts(status_in=["failed"])
        old = [rollout for rollout in failed if rollout.rollout_id not in retried]
    else:
        old = [await _failed(store, rollout_id) for rollout_id in dict.fromkeys(rollout_ids)]
    requests = [
        EnqueueRolloutRequest(
            input=rollout.input,
            mode=rollout.mode,
            resources_id=rollout.resources_id,
            config=rollout.config,
            metadata={**rollout.metadata, RETRY_OF: rollout.rollout_id},
        )
        for rollout in old
    ]
    return list(await store.enqueue_many_rollouts(requests)) if requests else []


async def _failed(store: LightningStore, rollout_id: str) -> Rollout:
    rollout = await store.get_rollout_by_id(rollout_id)
    if rollout is None:
        raise ValueError(f"no rollout {rollout_id}")
    if rollout.status != "failed":
        raise ValueError(f"rollout {rollout_id} is {rollout.status}: only a failed rollout can be tried again")
    return rollout
