"""Rewards: emit a number or several by name, and read them from spans."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from numbers import Real
from typing import Any, TypeVar, overload

from ..semconv import AGL_ANNOTATION, AGL_REWARD, LightningSpanAttributes, RewardPydanticModel
from ..store import primary_reward
from ..types import Attributes, SpanCoreFields, without_array
from .attributes import SpanLike, SpanT
from .emit import OK, Links, Tags, described, emit, operation, wrap_calls

_REWARD_VALUE = re.compile(re.escape(LightningSpanAttributes.REWARD.value) + r"\.(\d+)\.value")

WHOLE_ROLLOUT = "rollout"
"""Scope of a reward that belongs to a whole rollout and not to an LLM call."""


def get_rewards_from_span(span: SpanLike) -> list[RewardPydanticModel]:
    """Return the dimensions of a reward span, the primary one first; an empty list for another span."""
    attributes = span.attributes or {}
    numbers = sorted(int(match[1]) for key in attributes if (match := _REWARD_VALUE.fullmatch(key)))
    prefix = LightningSpanAttributes.REWARD.value
    return [
        RewardPydanticModel(
            name=str(attributes.get(f"{prefix}.{number}.name", "primary" if number == 0 else number)),
            value=float(attributes[f"{prefix}.{number}.value"]),
        )
        for number in numbers
    ]


def get_reward_value(span: SpanLike) -> float | None:
    """Return the primary reward of a span; None for another span.

    Reads the form of agent-lightning 0.3, which is ours, the single attribute of 0.2, and the form of AgentOps.
    """
    return primary_reward(span.name, span.attributes or {})


def is_reward_span(span: SpanLike) -> bool:
    """Return True if the span carries a reward."""
    return get_reward_value(span) is not None


def is_rollout_reward(span: SpanLike) -> bool:
    """Return True if the span carries a reward of the whole rollout, not of the last LLM call before it."""
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


FuncT = TypeVar("FuncT", bound=Callable[..., Any])


def emit_reward(
    reward: float | dict[str, float],
    *,
    primary_key: str | None = None,
    attributes: dict[str, Any] | None = None,
    propagate: bool = True,
    final: bool = False,
    links: Links | None = None,
    tags: Tags | None = None,
) -> SpanCoreFields:
    """Record a reward as an annotation. The last reward of an attempt is its final reward.

    Args:
        reward: a number, or several by name.
        primary_key: name of the number that counts; may be omitted for a single number.
        attributes: further attributes of the span.
        propagate: False only returns the span.
        final: the reward belongs to the whole rollout, else to the last LLM call before it. Only the credit modes
            `per_turn` and `discounted` distinguish them. Rewards that a rollout or a hook returns are final.
        links: as in `emit_annotation`.
        tags: as in `emit_annotation`.

    Raises:
        TypeError: the reward is no number.
        ValueError: one of several is no number, a reward is not finite, or `primary_key` is missing or unknown.
    """
    if isinstance(reward, dict):
        if primary_key is None and len(reward) == 1:
            primary_key = next(iter(reward))
        if primary_key is None:
            raise ValueError(f"primary_key must name the reward that counts, one of {sorted(reward)}")
        if primary_key not in reward:
            raise ValueError(f"primary_key {primary_key!r} is not among the rewards {sorted(reward)}")
        names = [primary_key, *(name for name in reward if name != primary_key)]
        strange = next((name for name in names if not isinstance(without_array(reward[name]), Real)), None)
        if strange is not None:
            raise ValueError(f"reward {strange!r} must be a number, not {type(reward[strange]).__name__}")
        values = {name: _number(reward[name], name) for name in names}
    else:
        values = {primary_key or "primary": _number(reward, primary_key or "primary")}
    facts: Attributes = {}
    for index, (name, value) in enumerate(values.items()):
        facts[f"{LightningSpanAttributes.REWARD.value}.{index}.name"] = name
        facts[f"{LightningSpanAttributes.REWARD.value}.{index}.value"] = value
    if final:
        facts[LightningSpanAttributes.REWARD_SCOPE.value] = WHOLE_ROLLOUT
    return emit(AGL_ANNOTATION, {**described(attributes, links, tags), **facts}, propagate, OK)


@overload
def reward(fn: FuncT) -> FuncT: ...
@overload
def reward(fn: None = None, *, primary_key: str | None = None, final: bool = False) -> Callable[[FuncT], FuncT]: ...
def reward(
    fn: FuncT | None = None, *, primary_key: str | None = None, final: bool = False
) -> FuncT | Callable[[FuncT], FuncT]:
    """Decorate a function, sync or async, whose result is emitted as a reward; None is not emitted.

    LLM calls of the function (a judge) count as part of the reward, not of the agent.

    Args:
        fn: the function.
        primary_key: as in `emit_reward`.
        final: as in `emit_reward`.
    """

    @contextmanager
    def emitting(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Callable[[Any], None]]:
        results: list[Any] = []
        with operation(name=AGL_REWARD):
            yield results.append
        for value in results:
            if value is not None:
                emit_reward(value, primary_key=primary_key, final=final)

    def decorate(func: FuncT) -> FuncT:
        return wrap_calls(func, emitting)

    return decorate if fn is None else decorate(fn)


def _number(value: Any, name: str) -> float:
    value = without_array(value)
    if not isinstance(value, Real):
        raise TypeError(f"reward {name!r} must be a number, not {type(value).__name__}")
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"reward {name!r} is {number}: a reward must be finite")
    return number
