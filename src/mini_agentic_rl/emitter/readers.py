"""Read emitted values back from spans. Pure functions: no tracer, no store.

A span here is a stored `Span`, an OpenTelemetry `ReadableSpan` or `SpanCoreFields`: only its attributes are read.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from pydantic import BaseModel

from ..semconv import AGL_ANNOTATION, AGL_REWARD, LightningSpanAttributes

_REWARD_VALUE = re.compile(re.escape(LightningSpanAttributes.REWARD.value) + r"\.(\d+)\.value")

_TRAINABLE = LightningSpanAttributes.TRAINABLE_AGENT.value

WHOLE_ROLLOUT = "rollout"
"""Scope of a reward that belongs to a whole rollout and not to one call."""


class SpanLike(Protocol):
    """Anything with a name and attributes."""

    @property
    def name(self) -> str: ...
    @property
    def attributes(self) -> Mapping[str, Any] | None: ...


SpanT = TypeVar("SpanT", bound=SpanLike)


class RewardDimension(BaseModel):
    """One number of a reward, with its name."""

    name: str
    value: float


def get_rewards_from_span(span: SpanLike) -> list[RewardDimension]:
    """Return the dimensions of a reward span, the primary one first; empty for any other span."""
    attributes = span.attributes or {}
    numbers = sorted(int(match[1]) for key in attributes if (match := _REWARD_VALUE.fullmatch(key)))
    prefix = LightningSpanAttributes.REWARD.value
    return [
        RewardDimension(
            name=str(attributes.get(f"{prefix}.{number}.name", "primary" if number == 0 else number)),
            value=float(attributes[f"{prefix}.{number}.value"]),
        )
        for number in numbers
    ]


def get_reward_value(span: SpanLike) -> float | None:
    """Return the primary reward of a span, or None if it is no reward span.

    Also reads the single-attribute form of 0.2.
    """
    rewards = get_rewards_from_span(span)
    if rewards:
        return rewards[0].value
    if span.name in (AGL_REWARD, AGL_ANNOTATION):
        value = (span.attributes or {}).get("reward")
        if isinstance(value, int | float):
            return float(value)
    return None


def is_reward_span(span: SpanLike) -> bool:
    """Return True if the span carries a reward."""
    return get_reward_value(span) is not None


def is_rollout_reward(span: SpanLike) -> bool:
    """Return True if the span carries a reward of the whole rollout, not of the last call before it."""
    scope = (span.attributes or {}).get(LightningSpanAttributes.REWARD_SCOPE.value)
    return scope == WHOLE_ROLLOUT and is_reward_span(span)


def find_reward_spans(spans: Iterable[SpanT]) -> list[SpanT]:
    """Return the spans that carry a reward, in the order given."""
    return [span for span in spans if is_reward_span(span)]


def find_final_reward(spans: Sequence[SpanLike]) -> float | None:
    """Return the primary reward of the last reward span, or None if there is none."""
    for span in reversed(spans):
        value = get_reward_value(span)
        if value is not None:
            return value
    return None


def get_message_value(span: SpanLike) -> str | None:
    """Return the text of an emitted message, or None if the span is no message."""
    body = (span.attributes or {}).get(LightningSpanAttributes.MESSAGE_BODY.value)
    return None if body is None else str(body)


def get_object_value(span: SpanLike) -> Any:
    """Return the emitted object, or None if the span carries none.

    Raises:
        ValueError: the span's type is unknown or its text does not parse.
    """
    attributes = span.attributes or {}
    text = attributes.get(LightningSpanAttributes.OBJECT_JSON.value)
    if text is not None:
        return json.loads(text)
    literal = attributes.get(LightningSpanAttributes.OBJECT_LITERAL.value)
    if literal is None:
        return None
    kind = attributes.get(LightningSpanAttributes.OBJECT_TYPE.value, "str")
    match kind:
        case "str":
            return str(literal)
        case "int":
            return int(literal)
        case "float":
            return float(literal)
        case "bool":
            return str(literal).lower() == "true"
        case "bytes":
            return base64.b64decode(literal)
        case _:
            raise ValueError(f"span {span.name!r} holds a literal of unknown type {kind!r}")


def find_trainable_agents(spans: Iterable[SpanLike]) -> list[str]:
    """Return the agents that `Rollout.mark_agent_as_trainable` named, in the order of the spans."""
    names = [str((span.attributes or {})[_TRAINABLE]) for span in spans if _TRAINABLE in (span.attributes or {})]
    return list(dict.fromkeys(names))
