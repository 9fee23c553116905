"""A rollout as its page shows it: attempts, conversations, rewards by component, the spans over time."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ....adapter import SHOWN, conversations, text_of
from ....algorithm import UNTRAINED_KEY
from ....emitter import find_final_reward, find_reward_spans, get_rewards_from_span, is_rollout_reward
from ....types import Attempt, Rollout, Span

_ATTRIBUTE: Final = 2000
_NUMBERS: Final = 16
_ATTRIBUTES: Final = 100


def rollout_view(
    rollout: Rollout, attempts: Sequence[Attempt], spans: Sequence[Span], *, shown: int = SHOWN
) -> dict[str, Any]:
    """Return everything about a rollout but its tokens.

    Args:
        spans: of all its attempts, in the order of the store.
        shown: characters of one text that are kept.
    """
    latest = attempts[-1] if attempts else None
    latest_spans = [span for span in spans if latest is not None and span.attempt_id == latest.attempt_id]
    metadata = rollout.metadata or {}
    return {
        "id": rollout.rollout_id,
        "status": rollout.status,
        "mode": rollout.mode,
        "start": rollout.start_time,
        "end": rollout.end_time,
        "resources": rollout.resources_id,
        "group": metadata.get("group"),
        "task": text_of(rollout.input, shown),
        "metadata": text_of(rollout.metadata, shown),
        "config": rollout.config.model_dump(mode="json"),
        "reward": find_final_reward(latest_spans),
        "rewards": _rewards(spans),
        "why": _why(metadata, latest),
        "attempts": [_attempt(attempt, spans) for attempt in attempts],
        "conversations": conversations(spans, shown=shown),
        "spans": [_span(span) for span in spans],
    }


def _why(metadata: Mapping[str, Any], latest: Attempt | None) -> str | None:
    why = metadata.get(UNTRAINED_KEY) or (None if latest is None else latest.metadata.get("error"))
    return None if why is None else str(why)[:SHOWN]


def _attempt(attempt: Attempt, spans: Sequence[Span]) -> dict[str, Any]:
    error = attempt.metadata.get("error")
    return {
        "id": attempt.attempt_id,
        "number": attempt.sequence_id,
        "status": attempt.status,
        "start": attempt.start_time,
        "end": attempt.end_time,
        "worker": attempt.worker_id,
        "heartbeat": attempt.last_heartbeat_time,
        "error": None if error is None else str(error)[:SHOWN],
        "spans": sum(span.attempt_id == attempt.attempt_id for span in spans),
    }


def _rewards(spans: Sequence[Span]) -> list[dict[str, Any]]:
    """Every reward that was given, with its components; the last one is the rollout's."""
    found = []
    for span in find_reward_spans(spans):
        parts = [{"name": one.name[:200], "value": one.value} for one in get_rewards_from_span(span)]
        scope = "rollout" if is_rollout_reward(span) else "call"
        found.append({"attempt": span.attempt_id, "span": span.span_id, "scope": scope, "parts": parts})
    return found


def _span(span: Span) -> dict[str, Any]:
    attributes = list(span.attributes.items())
    return {
        "id": span.span_id,
        "parent": span.parent_id,
        "attempt": span.attempt_id,
        "number": span.sequence_id,
        "name": span.name[:300],
        "start": span.start_time,
        "end": span.end_time,
        "status": span.status.status_code,
        "description": None if span.status.description is None else span.status.description[:_ATTRIBUTE],
        "attributes": [[name[:300], _value(value)] for name, value in attributes[:_ATTRIBUTES]],
        "left_out": max(0, len(attributes) - _ATTRIBUTES),
        "events": [event.name[:300] for event in span.events[:20]],
    }


def _value(value: Any) -> str:
    """Return an attribute as a text of bounded length; of long lists of numbers their beginning."""
    if isinstance(value, list | tuple) and len(value) > _NUMBERS:
        begin = json.dumps(list(value[:_NUMBERS]), ensure_ascii=False, default=str)[:-1][:_ATTRIBUTE]
        return f"{begin}, … {len(value):,} in all]"
    text = text_of(value, _ATTRIBUTE)
    return text["text"] + (f" … ({text['more']:,} more characters)" if text["more"] else "")
