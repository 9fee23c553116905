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
from ..types import AttemptedRollout, Hook, Rollout
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

    def look_after(self, now: Rollout | None) -> None:
        """Break the attempt off if it no longer counts.

        Args:
            now: the rollout, as the store has it.
        """
        reason = self._why_over(now)
        if reason is not None and not self.halt.done() and not self.run.ending:
            number = self.rollout.attempt.sequence_id
            logger.warning("attempt %d of rollout %s is broken off: %s", number, self.rollout.rollout_id, reason)
            self.halt.set_result(reason)

    def _why_over(self, now: Rollout | None) -> str | None:
        """Return why the attempt no longer counts; None while it does."""
        latest = now.attempt if isinstance(now, AttemptedRollout) else None
        if now is None or latest is None or latest.attempt_id != self.rollout.attempt.attempt_id:
            return "another attempt has taken its place"
        if has_ended(now):
            return f"its rollout has ended ({now.status})"
        if latest.status not in LIVE_ATTEMPT_STATUSES:
            return f"the store has given it up ({latest.status})"
        return None


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
