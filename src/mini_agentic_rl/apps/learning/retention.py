"""Retention: sessions are deleted some days after they were opened, whether anything was learnt from them or not."""

from __future__ import annotations

import time
from typing import Final

from ...store import LightningStore
from .record import is_session

_PAGE: Final = 256


async def delete_old(store: LightningStore, keep_days: float) -> int:
    """Delete the sessions that were opened longer ago than that; return how many."""
    oldest, offset, deleted = time.time() - keep_days * 86_400, 0, 0
    while True:
        page = list(await store.query_rollouts(sort_by="start_time", limit=_PAGE, offset=offset))
        old = [rollout for rollout in page if rollout.start_time < oldest]
        gone = await store.delete_rollouts([each.rollout_id for each in old if is_session(each.rollout_id)])
        deleted += len(gone)
        offset += len(old) - len(gone)
        if len(old) < _PAGE:
            return deleted
