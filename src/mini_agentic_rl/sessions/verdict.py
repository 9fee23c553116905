"""Verdicts: what a session, or one answer in it, was worth, as spans of the session.

A verdict is an annotation with a reward of the whole rollout, as `emit_reward(…, final=True)` writes it, so that every
reader of rewards understands it. Three attributes say more: the comparison that it is part of, where the number means
something beside the others of that comparison alone, and the answer that it is about, where it is not the session.

Of several verdicts about the same thing the last counts. Each has an id that follows from its place in that order, so
that of two which are given at once the store takes one. One that was withdrawn does not count, but keeps its place.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ..emitter import get_reward_value
from ..semconv import AGL_ANNOTATION, LightningSpanAttributes
from ..types import Attributes, Span, TraceStatus

COMPARISON: Final = "agentlightning.session.comparison"
RESPONSE_ID: Final = "agentlightning.session.response_id"
CHOICE: Final = "agentlightning.session.choice"
_NUMBER: Final = "agentlightning.session.verdict"
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
class Verdict:
    """Worth of a session, or of one answer in it."""

    value: float
    comparison: str | None
    """Id of what it was compared in; None for a number that stands by itself."""
    answer: Answer | None
    number: int
    """1 for the first verdict about the same thing."""
    sequence_id: int
    """Calls after it are not meant by it."""
    withdraws: int | None = None
    """Number of an earlier verdict about the same thing that does not count any more; this one then never counts."""


def latest_verdicts(spans: Sequence[Span]) -> dict[Answer | None, Verdict]:
    """Return the verdicts that count among the spans of a session, by what they are about; None is the session."""
    found: dict[Answer | None, Verdict] = {}
    given = all_verdicts(spans)
    gone = {
        (one.answer, number) for one in given if one.withdraws is not None for number in (one.number, one.withdraws)
    }
    for verdict in given:
        known = found.get(verdict.answer)
        if (verdict.answer, verdict.number) not in gone and (known is None or verdict.number > known.number):
            found[verdict.answer] = verdict
    return found


def all_verdicts(spans: Sequence[Span]) -> list[Verdict]:
    """Return every verdict that was ever given among the spans of a session."""
    return [verdict for span in spans if (verdict := _read(span)) is not None]


def verdict_span(rollout_id: str, attempt_id: str, verdict: Verdict) -> Span:
    """Return the span of a verdict."""
    reward = LightningSpanAttributes.REWARD.value
    facts: Attributes = {
        f"{reward}.0.name": "primary",
        f"{reward}.0.value": verdict.value,
        LightningSpanAttributes.REWARD_SCOPE.value: "rollout",
        _NUMBER: verdict.number,
    }
    if verdict.withdraws is not None:
        facts[_WITHDRAWS] = verdict.withdraws
    about = ""
    if verdict.comparison is not None:
        facts[COMPARISON] = verdict.comparison
    if verdict.answer is not None:
        facts[RESPONSE_ID], facts[CHOICE] = verdict.answer.call, verdict.answer.choice
        about = f"{verdict.answer.call}/{verdict.answer.choice}"
    name = f"{rollout_id}/{attempt_id}/{about}/{verdict.number}"
    return Span.from_attributes(
        attributes=facts,
        rollout_id=rollout_id,
        attempt_id=attempt_id,
        sequence_id=verdict.sequence_id,
        name=AGL_ANNOTATION,
        span_id=hashlib.blake2b(name.encode(), digest_size=8).hexdigest(),
        status=TraceStatus(status_code="OK"),
    )


def _read(span: Span) -> Verdict | None:
    number, value = span.attributes.get(_NUMBER), get_reward_value(span)
    if not isinstance(number, int) or value is None:
        return None
    response, choice = span.attributes.get(RESPONSE_ID), span.attributes.get(CHOICE)
    comparison, withdraws = span.attributes.get(COMPARISON), span.attributes.get(_WITHDRAWS)
    return Verdict(
        value=value,
        comparison=None if comparison is None else str(comparison),
        answer=None if response is None else Answer(str(response), int(choice) if isinstance(choice, int) else 0),
        number=number,
        sequence_id=span.sequence_id,
        withdraws=withdraws if isinstance(withdraws, int) else None,
    )
