"""Read emitted values back from spans. Pure functions: no tracer, no store.

A span here is a stored `Span`, an OpenTelemetry `ReadableSpan` or `SpanCoreFields`: only its attributes are read.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from ..semconv import AGL_ANNOTATION, AGL_REWARD, LightningSpanAttributes, RewardPydanticModel

_REWARD_VALUE = re.compile(re.escape(LightningSpanAttributes.REWARD.value) + r"\.(\d+)\.value")

_AGENTOPS_OUTPUTS = ("agentops.task.output", "agentops.entity.output")
"""Attributes under which AgentOps keeps what a decorated reward function returned: `{"type": "reward", "value": …}`."""

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


RewardDimension = RewardPydanticModel


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

    Reads the form of every version: ours, which is that of agent-lightning 0.3, the single attribute of 0.2, and what
    AgentOps writes for a decorated reward function.
    """
    rewards = get_rewards_from_span(span)
    if rewards:
        return rewards[0].value
    attributes = span.attributes or {}
    value = attributes.get("reward") if span.name in (AGL_REWARD, AGL_ANNOTATION) else None
    for key in _AGENTOPS_OUTPUTS:
        if value is None and key in attributes:
            value = _agentops_reward(attributes[key])
    return float(value) if isinstance(value, int | float) else None


def _agentops_reward(output: Any) -> Any:
    if isinstance(output, str):
        try:
            output = json.loads(output)
        except ValueError:
            return None
    return output.get("value") if isinstance(output, Mapping) and output.get("type") == "reward" else None


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
        RuntimeError: the span's type is unknown or its JSON does not parse.
        ValueError: its literal is not of its type.
    """
    attributes = span.attributes or {}
    text = attributes.get(LightningSpanAttributes.OBJECT_JSON.value)
    if text is not None:
        try:
            return json.loads(text)
        except (TypeError, ValueError) as error:
            raise RuntimeError(f"the object of span {span.name!r} is no JSON: {error}") from error
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
            raise RuntimeError(f"span {span.name!r} holds a literal of unknown type {kind!r}")


def find_trainable_agents(spans: Iterable[SpanLike]) -> list[str]:
    """Return the agents that `Rollout.mark_agent_as_trainable` named, in the order of the spans."""
    names = [str((span.attributes or {})[_TRAINABLE]) for span in spans if _TRAINABLE in (span.attributes or {})]
    return list(dict.fromkeys(names))
