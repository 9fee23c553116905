"""Rewards that a session, or one answer in it, is given, as spans of the session.

Each is an annotation with a reward of the whole rollout, as `emit_reward(…, final=True)` writes it, so that every
reader of rewards understands it. Three attributes say more: the comparison that it is part of, where the number means
something beside the others of that comparison alone, and the answer that it is about, where it is not the session.

Of several rewards for the same thing the last counts. Each has an id that follows from its place in that order, so
that of two which are given at once the store takes one. One that was withdrawn does not count, but keeps its place.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ...emitter import get_reward_value
from ...semconv import AGL_ANNOTATION, LightningSpanAttributes
from ...types import Attributes, Span, TraceStatus

COMPARISON: Final = "agentlightning.session.comparison"
RESPONSE_ID: Final = "agentlightning.session.response_id"
CHOICE: Final = "agentlightning.session.choice"
_NUMBER: Final = "agentlightning.session.reward"
_WITHDRAWS: Final = "agentlightning.session.withdraws"


@dataclass(frozen=True)
class Answer:
    """One answer of a session."""

    response_id: str
    """The id that the agent was told, in any dialect."""
    choice: int = 0
    """Its number, where one call was given several."""

    @property
    def call(self) -> str:
        """Return what the ids of one response have in common in all dialects."""
        return self.response_id.rpartition("_")[2].rpartition("-")[2]

    @property
    def of_the_call(self) -> Answer:
        """Return the answer under the name that it has in all dialects."""
        return Answer(self.call, self.choice)


@dataclass(frozen=True)
class SessionReward:
    """The reward of a session, or of one answer in it."""

    value: float
    comparison: str | None
    """Id of what it was compared in; None for a number that stands by itself."""
    answer: Answer | None
    number: int
    """1 for the first reward for the same thing."""
    sequence_id: int
    """Calls after it are not meant by it."""
    withdraws: int | None = None
    """Number of an earlier reward for the same thing that does not count any more; this one then never counts."""


def latest_rewards(spans: Sequence[Span]) -> dict[Answer | None, SessionReward]:
    """Return the rewards that count among the spans of a session, by what they are for; None is the session."""
    found: dict[Answer | None, SessionReward] = {}
    given = all_rewards(spans)
    gone = {
        (one.answer, number) for one in given if one.withdraws is not None for number in (one.number, one.withdraws)
    }
    for reward in given:
        known = found.get(reward.answer)
        if (reward.answer, reward.number) not in gone and (known is None or reward.number > known.number):
            found[reward.answer] = reward
    return found


def all_rewards(spans: Sequence[Span]) -> list[SessionReward]:
    """Return every reward that was ever given, among the spans of a session."""
    return [reward for span in spans if (reward := _read(span)) is not None]


def reward_span(rollout_id: str, attempt_id: str, reward: SessionReward) -> Span:
    """Return the span of a reward."""
    prefix = LightningSpanAttributes.REWARD.value
    facts: Attributes = {
        f"{prefix}.0.name": "primary",
        f"{prefix}.0.value": reward.value,
        LightningSpanAttributes.REWARD_SCOPE.value: "rollout",
        _NUMBER: reward.number,
    }
    if reward.withdraws is not None:
        facts[_WITHDRAWS] = reward.withdraws
    about = ""
    if reward.comparison is not None:
        facts[COMPARISON] = reward.comparison
    if reward.answer is not None:
        facts[RESPONSE_ID], facts[CHOICE] = reward.answer.call, reward.answer.choice
        about = f"{reward.answer.call}/{reward.answer.choice}"
    name = f"{rollout_id}/{attempt_id}/{about}/{reward.number}"
    return Span.from_attributes(
        attributes=facts,
        rollout_id=rollout_id,
        attempt_id=attempt_id,
        sequence_id=reward.sequence_id,
        name=AGL_ANNOTATION,
        span_id=hashlib.blake2b(name.encode(), digest_size=8).hexdigest(),
        status=TraceStatus(status_code="OK"),
    )


def _read(span: Span) -> SessionReward | None:
    number, value = span.attributes.get(_NUMBER), get_reward_value(span)
    if not isinstance(number, int) or value is None:
        return None
    response, choice = span.attributes.get(RESPONSE_ID), span.attributes.get(CHOICE)
    comparison, withdraws = span.attributes.get(COMPARISON), span.attributes.get(_WITHDRAWS)
    return SessionReward(
        value=value,
        comparison=None if comparison is None else str(comparison),
        answer=None if response is None else Answer(str(response), int(choice) if isinstance(choice, int) else 0),
        number=number,
        sequence_id=span.sequence_id,
        withdraws=withdraws if isinstance(withdraws, int) else None,
    )
