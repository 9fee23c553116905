"""Read what the call of an agent or of a hook says about its rollout, besides what it emits.

The final reward is, in this order: the number that the call returns; `metadata["reward"]` of a `Rollout` that it
returns; `rollout.metadata["reward"]`, where the call sets or changes it. So `return 1.0` and
`rollout.metadata["reward"] = 1.0; return rollout` mean the same. An agent may return a `Rollout` of its own, made of an
input and an output: what its metadata hold (`output` among them) is then known to the hooks, and its `traces`, where
they are spans, join the trace.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan

from ..types import REWARD_KEY, TRACES_KEY, Rollout, Span, SpanCoreFields


@dataclass(frozen=True)
class RolloutOutcome:
    """Reward and spans that one call left."""

    reward: float | None = None
    """Final reward, if the call gave one."""
    spans: Sequence[Span] = ()
    """Spans to add to the trace; ids of rollout and attempt are still to be set."""


def read_result(result: Any, rollout: Rollout, before: Mapping[str, Any]) -> RolloutOutcome:
    """Read what the agent left: `result` is what it returned, `rollout` what it was given.

    The metadata of a returned `Rollout` are added to `rollout.metadata`.

    Args:
        before: `rollout.metadata` as they were before the call (a shallow copy).

    Raises:
        TypeError: the result is neither None, a number, a list of spans nor a rollout, or `metadata["reward"]` is no
        number.
    """
    if isinstance(result, Real):
        return RolloutOutcome(float(result))
    if isinstance(result, Rollout):
        if result is not rollout:
            rollout.metadata.update(result.metadata)
        traces = result.metadata.get(TRACES_KEY, ())
        return RolloutOutcome(_set_reward(rollout, before), _as_spans(traces) if _are_spans(traces) else ())
    if result is None:
        return RolloutOutcome(_set_reward(rollout, before))
    if _are_spans(result):
        return RolloutOutcome(_set_reward(rollout, before), _as_spans(result))
    raise TypeError(
        "a rollout returns None, its final reward as a number, a list of spans, or a Rollout with its output, not "
        f"{type(result).__name__}"
    )


def read_hook_result(result: Any, rollout: Rollout, before: Mapping[str, Any]) -> float | None:
    """Return the final reward that a hook gave, or None. Anything else that a hook returns is ignored.

    Raises:
        TypeError: `metadata["reward"]` is no number.
    """
    if isinstance(result, Real):
        return float(result)
    if isinstance(result, Rollout) and result is not rollout:
        rollout.metadata.update(result.metadata)
    return _set_reward(rollout, before)


def _set_reward(rollout: Rollout, before: Mapping[str, Any]) -> float | None:
    value = rollout.metadata.get(REWARD_KEY)
    if value is None or (REWARD_KEY in before and before[REWARD_KEY] == value):
        return None
    if not isinstance(value, Real):
        raise TypeError(f'rollout.metadata["{REWARD_KEY}"] must be a number, not {type(value).__name__}')
    return float(value)


def _are_spans(value: Any) -> bool:
    return (
        isinstance(value, Sequence)
        and not isinstance(value, str | bytes)
        and all(isinstance(item, Span | ReadableSpan | SpanCoreFields) for item in value)
    )


def _as_spans(items: Sequence[Span | ReadableSpan | SpanCoreFields]) -> list[Span]:
    return [_as_span(item) for item in items]


def _as_span(item: Span | ReadableSpan | SpanCoreFields) -> Span:
    match item:
        case ReadableSpan():
            return Span.from_opentelemetry(item, "", "", 0)
        case SpanCoreFields():  # what an emitter with propagate=False returns
            return Span.from_core_fields(item)
        case _:
            return item.model_copy()
