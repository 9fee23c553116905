"""Emit rewards: one number, or several by name with one of them primary."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from numbers import Real
from typing import Any, TypeVar, overload

from ..semconv import AGL_ANNOTATION, AGL_REWARD, LightningSpanAttributes
from ..types import Attributes, SpanCoreFields
from .annotation import operation, wrap_calls
from .emit import OK, Links, Tags, described, emit
from .readers import (
    WHOLE_ROLLOUT,
    find_final_reward,
    find_reward_spans,
    get_reward_value,
    get_rewards_from_span,
    is_reward_span,
    is_rollout_reward,
)

__all__ = [
    "emit_reward",
    "find_final_reward",
    "find_reward_spans",
    "get_reward_value",
    "get_rewards_from_span",
    "is_reward_span",
    "is_rollout_reward",
    "reward",
]

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
    """Record a reward, as an annotation. The last one of an attempt is its final reward.

    It belongs to the last LLM call before it, or with `final` to the whole rollout; only the credit modes that look at
    single calls (`per_turn`, `discounted`) tell them apart. The reward that a rollout or a hook returns is recorded
    with `final`.

    A dictionary records several numbers; `primary_key` names the one that counts, and may be left out where there is
    only one.

    Raises:
        TypeError: the reward is no number.
        ValueError: one of several is no number, a reward is NaN or infinite, or `primary_key` is missing or names none
            of them.
    """
    if isinstance(reward, dict):
        if primary_key is None and len(reward) == 1:
            primary_key = next(iter(reward))
        if primary_key is None:
            raise ValueError(f"primary_key must name the reward that counts, one of {sorted(reward)}")
        if primary_key not in reward:
            raise ValueError(f"primary_key {primary_key!r} is not among the rewards {sorted(reward)}")
        names = [primary_key, *(name for name in reward if name != primary_key)]
        strange = next((name for name in names if not isinstance(reward[name], Real)), None)
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
    """Decorate a function that returns a reward, sync or async: what it returns is emitted, None is not.

    LLM calls that the function makes (a judge) count as part of the reward, not of the agent. `primary_key` names the
    number that counts of a function that returns several by name; `final` is that of `emit_reward`.
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
    if not isinstance(value, Real):
        raise TypeError(f"reward {name!r} must be a number, not {type(value).__name__}")
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"reward {name!r} is {number}: a reward must be finite")
    return number
