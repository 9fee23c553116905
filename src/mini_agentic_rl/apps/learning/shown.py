"""Sessions as they are shown: as JSON to whoever opened them, as text to a judge."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

from ...semconv import CompletionSpanAttributes as Call
from ...types import Span
from .record import SessionRecord
from .rewards import Answer, SessionReward

_MOST_CALLS: Final = 100
_MOST_CHARACTERS: Final = 1_000_000


def told(record: SessionRecord, rewards: Mapping[Answer | None, SessionReward], calls: int) -> dict[str, Any]:
    """Return a session as JSON."""
    return {
        "object": "session",
        "id": record.session_id,
        "key": record.key,
        "status": record.status,
        "opened": record.opened,
        "calls": calls,
        "learnt_in": record.learnt,
        "skipped": record.skipped,
        "rewards": [
            {
                "reward": reward.value,
                "comparison": reward.comparison,
                "response_id": None if reward.answer is None else reward.answer.response_id,
                "choice": None if reward.answer is None else reward.answer.choice,
            }
            for reward in rewards.values()
        ],
    }


def transcript(last: Span | None) -> str:
    """Return a conversation as text: what its last call was shown, and what it answered; "" where there is none."""
    if last is None:
        return ""
    facts = last.attributes
    shown = json.loads(str(facts.get(Call.INPUT_MESSAGES, "[]")))
    return json.dumps([*shown, json.loads(str(facts.get(Call.OUTPUT_MESSAGES, "null")))], ensure_ascii=False)


async def conversation(calls: AsyncIterator[Span]) -> tuple[list[dict[str, Any]], bool]:
    """Return the first of some calls, as many as are shown at once, and whether there are more."""
    shown: list[dict[str, Any]] = []
    characters = 0
    async for span in calls:
        facts = span.attributes
        texts = str(facts.get(Call.INPUT_MESSAGES, "[]")), str(facts.get(Call.OUTPUT_MESSAGES, "null"))
        characters += sum(map(len, texts))
        if shown and (characters > _MOST_CHARACTERS or len(shown) == _MOST_CALLS):
            return shown, True
        messages, answer = map(json.loads, texts)
        facts_shown = {"response_id": facts.get(Call.RESPONSE_ID), "choice": facts.get(Call.CHOICE_INDEX, 0)}
        shown.append({**facts_shown, "messages": messages, "answer": answer})
    return shown, False
