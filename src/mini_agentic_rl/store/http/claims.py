"""Claims that cannot reach whoever claimed them."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from ...types import AttemptedRollout
from ..base import LightningStore
from .json_text import encode

logger = logging.getLogger(__name__)


async def fail_unsendable(store: LightningStore, claimed: Sequence[AttemptedRollout]) -> list[AttemptedRollout]:
    """The claims that can be sent; the attempts of the others fail, with the reason in their metadata.

    A process that puts tasks into a store in memory, past its server, may put in what is not JSON.
    """
    sendable = []
    for rollout in claimed:
        try:
            encode(rollout, f"rollout {rollout.rollout_id}")
        except ValueError as error:
            logger.error("%s", error)
            await store.update_attempt(
                rollout.rollout_id, rollout.attempt.attempt_id, status="failed", metadata={"error": str(error)}
            )
        else:
            sendable.append(rollout)
    return sendable


async def give_back(store: LightningStore, claimed: Sequence[AttemptedRollout]) -> None:
    """Queue rollouts again that nobody is going to run, unless somebody has gone on with them."""
    for rollout in claimed:
        latest = await store.get_latest_attempt(rollout.rollout_id)
        if latest is not None and latest.attempt_id == rollout.attempt.attempt_id and latest.status == "preparing":
            await store.update_rollout(rollout.rollout_id, status="requeuing")
