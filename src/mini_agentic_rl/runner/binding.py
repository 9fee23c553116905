"""A runner's work for one task of an event loop: agent and store, and the attempt under way while it counts."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ..litagent import LitAgent
from ..store import LIVE_ATTEMPT_STATUSES, LightningStore, has_ended
from ..types import AttemptedRollout, Hook
from .attempt import AttemptRun
from .base import Runner
from .isolation import AgentProcess

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class UnderWay:
    """An attempt under way."""

    rollout: AttemptedRollout
    run: AttemptRun
    halt: asyncio.Future[str]
    """Future that breaks it off once it is done; its result is the reason."""


@dataclass
class Binding:
    """The agent, the store and the counters of one task."""

    runner: Runner[Any]
    agent: LitAgent[Any]
    store: LightningStore
    hooks: Sequence[Hook]
    worker_id: str
    process: AgentProcess | None
    attempts: int = 0
    failed: int = 0
    current: UnderWay | None = None

    @contextmanager
    def under_way(self, attempt: UnderWay) -> Iterator[None]:
        """Know of an attempt for the duration of a block, which may stand in that of another one."""
        before, self.current = self.current, attempt
        try:
            yield
        finally:
            self.current = before

    async def look_after(self) -> None:
        """Break the attempt under way off if it no longer counts."""
        current = self.current
        if current is None:
            return
        reason = await self._why_over(current.rollout)
        if reason is not None and not current.halt.done() and not current.run.ending:
            number = current.rollout.attempt.sequence_id
            logger.warning("attempt %d of rollout %s is broken off: %s", number, current.rollout.rollout_id, reason)
            current.halt.set_result(reason)

    async def _why_over(self, rollout: AttemptedRollout) -> str | None:
        """Return why an attempt no longer counts; None while it does."""
        now = await self.store.get_rollout_by_id(rollout.rollout_id)
        latest = now.attempt if isinstance(now, AttemptedRollout) else None
        if now is None or latest is None or latest.attempt_id != rollout.attempt.attempt_id:
            return "another attempt has taken its place"
        if has_ended(now):
            return f"its rollout has ended ({now.status})"
        if latest.status not in LIVE_ATTEMPT_STATUSES:
            return f"the store has given it up ({latest.status})"
        return None
