"""Judging: sessions that are over and that nobody has judged are scored beside each other, by their keys."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from ...rewards import JudgementError
from ...sessions import Judgement, SessionBook, SessionError, SessionRecord, read_record, transcript

if TYPE_CHECKING:
    from ...rewards import RelativeJudge

logger = logging.getLogger(__name__)


async def judge_ended(book: SessionBook, judge: RelativeJudge, group_size: int) -> int:
    """Have `judge` score the sessions that are over, `group_size` of one key beside each other; return how many were.

    A judge that does not answer costs nothing but time: the sessions are there for the next try.
    """
    from openai import OpenAIError

    waiting: dict[tuple[str, str], list[SessionRecord]] = {}
    for rollout in await book.store.query_rollouts(status_in=["preparing", "running"]):
        record = read_record(rollout)
        if record is not None and record.status == "ended":
            waiting.setdefault((record.owner, record.key), []).append(record)
    judged = 0
    for (owner, _), records in waiting.items():
        for start in range(0, len(records) - group_size + 1, group_size):
            group = records[start : start + group_size]
            texts = [transcript(await book.last_call(record)) for record in group]
            if not all(texts):
                continue
            try:
                scores = await asyncio.to_thread(judge.score, texts)
                scored = [Judgement(one.session_id, score) for one, score in zip(group, scores, strict=True)]
                await book.compare_of(owner, scored)
                judged += len(group)
            except (OpenAIError, JudgementError, SessionError) as error:
                logger.warning("%d sessions were not judged: %s", len(group), error)
    return judged
