"""Lessons: what can be learnt from a judged session, read from its spans."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from ...adapter import TrainedCalls, is_completion
from ...semconv import CompletionSpanAttributes as Call
from ...tokens import GREEDY_BELOW, CompletionRecord
from ...types import Span
from . import Answer, SessionRecord, SessionReward, latest_rewards

GRACE_SECONDS: Final = 60.0
"""Time that the other sessions of a comparison have to be judged as well, one after another."""


@dataclass(frozen=True)
class Lesson:
    """The calls that one reward is for."""

    record: SessionRecord
    value: float
    comparison: str | None
    records: Sequence[CompletionRecord]
    judged_at: float

    @property
    def group(self) -> str:
        """Return what its value is compared within: the comparison, or the owner's sessions of the key."""
        return self.comparison or f"{self.record.owner}/{self.record.key}"


@dataclass(frozen=True)
class JudgedSession:
    """A session with its lessons, or the reason why there are none."""

    record: SessionRecord
    lessons: Sequence[Lesson] = field(default=())
    why_not: str | None = None


def read_session(
    record: SessionRecord, spans: Sequence[Span], trained: TrainedCalls, version: int, max_age: int
) -> JudgedSession:
    """Return what can be learnt from a session.

    Args:
        spans: all of the session.
        trained: which calls are the policy's.
        version: of the policy now.
        max_age: versions that the oldest call may be behind.
    """
    rewards = latest_rewards(spans)
    found = [_lesson(record, spans, reward, rewards, trained) for reward in rewards.values()]
    reasons = [why for lesson, why in found if lesson is None]
    lessons = [lesson for lesson, _ in found if lesson is not None]
    if not lessons:
        return JudgedSession(record, why_not=reasons[0] if reasons else "it has no reward")
    age = version - min(call.version for lesson in lessons for call in lesson.records)
    if age > max_age:
        return JudgedSession(record, why_not=f"the weights that answered are {age} versions old (max_age={max_age})")
    return JudgedSession(record, lessons)


def is_recent(lesson: Lesson) -> bool:
    """Return True if the rest of its comparison may still be on its way."""
    return time.time() - lesson.judged_at < GRACE_SECONDS


def _lesson(
    record: SessionRecord,
    spans: Sequence[Span],
    reward: SessionReward,
    rewards: dict[Answer | None, SessionReward],
    trained: TrainedCalls,
) -> tuple[Lesson | None, str]:
    """Return the lesson of a reward, or why there is none. What has a reward of its own is no part of the session's;
    what came after a reward is not meant by it."""
    judged_at = next((s.start_time or 0.0 for s in spans if s.sequence_id == reward.sequence_id), 0.0)
    own = {answer for answer in rewards if answer is not None}
    meant = [
        span
        for span in spans
        if span.sequence_id < reward.sequence_id
        and not (is_completion(span) and not _is_meant(_answer(span), reward.answer, own))
    ]
    selection = trained.select(meant)
    records = [call for call in selection.records if call.temperature >= GREEDY_BELOW]
    if records:
        return Lesson(record, reward.value, reward.comparison, records, judged_at), ""
    if selection.records:
        return None, "all its calls were at temperature 0, where nothing was tried that could be learnt"
    return None, selection.why_empty or "it has no call before its reward"


def _is_meant(answer: Answer, about: Answer | None, own: set[Answer]) -> bool:
    return answer == about if about is not None else answer not in own


def _answer(span: Span) -> Answer:
    choice = span.attributes.get(Call.CHOICE_INDEX, 0)
    response = Answer(str(span.attributes.get(Call.RESPONSE_ID, "")))
    return Answer(response.call, int(choice) if isinstance(choice, int) else 0)
