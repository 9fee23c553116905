"""Judging: ended sessions without a reward are scored by a model in groups of one key."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from ...rewards import JudgementError
from . import Judgement, SessionBook, SessionError, SessionRecord, read_record, transcript

if TYPE_CHECKING:
    from ...rewards import RelativeJudge

logger = logging.getLogger(__name__)

_PAGE: Final = 256
_MOST_REMEMBERED: Final = 65_536
"""Sessions that are remembered until their group is complete; beyond this number all are forgotten and read again."""
_PAGES: Final = 8
"""Pages of one look; the next look continues where this one ended."""


class EndedSessions:
    """Ended sessions without a reward, read in bounded numbers.

    Args:
        book: the sessions.
        judge: scores sessions with the same key against each other.
        group_size: sessions per group.
    """

    def __init__(self, book: SessionBook, judge: RelativeJudge, group_size: int) -> None:
        self._book = book
        self._judge = judge
        self._group_size = group_size
        self._offset = 0
        self._waiting: dict[tuple[str, str], dict[str, SessionRecord]] = {}

    async def look(self) -> bool:
        """Note ended sessions: the newest, then further pages from where the last look stopped. Return True at the end
        of all open sessions."""
        if sum(map(len, self._waiting.values())) > _MOST_REMEMBERED:
            self._waiting.clear()
        await self._look_at(0)
        for _ in range(_PAGES - 1):
            if await self._look_at(self._offset):
                self._offset = 0
                return True
            self._offset += _PAGE
        return False

    async def judged(self) -> int:
        """Score the complete groups and return the number of scored sessions. Sessions without a call are dropped. If
        the judge fails, the sessions are scored at a later call."""
        judged = 0
        for (owner, key), records in list(self._waiting.items()):
            while len(records) >= self._group_size:
                group = list(records.values())[: self._group_size]
                texts = [transcript(await self._book.last_call(record)) for record in group]
                for record, text in zip(group, texts, strict=True):
                    if not text or all(texts):
                        del records[record.rollout_id]
                if all(texts):
                    judged += await self._scored(owner, group, texts)
            if not records:
                del self._waiting[owner, key]
        return judged

    async def _look_at(self, offset: int) -> bool:
        """Note the ended sessions of a page; return True if it is the last."""
        page = await self._book.store.query_rollouts(
            status_in=["running"],
            sort_order="desc",
            limit=_PAGE,
            offset=offset,  # before its first call it is not
        )
        for rollout in page:
            record = read_record(rollout)
            if record is not None and record.status == "ended":
                self._waiting.setdefault((record.owner, record.key), {})[record.rollout_id] = record
        return len(page) < _PAGE

    async def _scored(self, owner: str, group: list[SessionRecord], texts: list[str]) -> int:
        from openai import OpenAIError

        try:
            scores = await asyncio.to_thread(self._judge.score, texts)
            scored = [Judgement(record.session_id, score) for record, score in zip(group, scores, strict=True)]
            await self._book.compare_of(owner, scored)
        except (OpenAIError, JudgementError, SessionError) as error:
            logger.warning("%d sessions were not judged: %s", len(group), error)
            return 0
        return len(group)
