"""Arguments and results of agents and hooks.

A function gets the arguments that it names. A required parameter with another name takes the offered value at its
position, so `def rollout(self, task)` and `def rollout(self, sample, resources)` both work. A parameter annotated with
`mini_agentic_rl.types.Task` gets a `Task` with the row as its `input`; otherwise it gets the row itself.

The final reward is the first of these: the number that the call returns; `metadata["reward"]` of a returned `Rollout`;
`rollout.metadata["reward"]`, if the call sets or changes it. The metadata of a returned `Rollout` are visible to the
hooks, and the spans among its `traces` join the trace.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan

from ..types import REWARD_KEY, TRACES_KEY, Rollout, Span, SpanCoreFields, Task, without_array

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def arguments_for(
    func: Callable[..., Any], offered: Mapping[str, Any], *, by_position: bool = True
) -> tuple[list[Any], dict[str, Any]]:
    """Return positional and keyword arguments for `func`.

    Args:
        func: the function.
        offered: values by name, in the order of their positions.
        by_position: give a required parameter with another name the value at its position.

    Raises:
        TypeError: no value is offered for a required parameter.
    """
    parameters = inspect.signature(func).parameters
    positional: list[Any] = []
    keywords: dict[str, Any] = {}
    for name, source in _sources(func, parameters, tuple(offered), by_position).items():
        value = offered[source]
        rollout = offered.get("rollout")
        if source == "task" and isinstance(rollout, Rollout):
            value = as_annotated(func, name, value, rollout)
        if parameters[name].kind is inspect.Parameter.POSITIONAL_ONLY:
            positional.append(value)
        else:
            keywords[name] = value
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
        keywords = {**{name: value for name, value in offered.items() if name not in keywords}, **keywords}
    return positional, keywords


def names_argument(func: Callable[..., Any], name: str, offered: tuple[str, ...]) -> bool:
    """Return True if `func` takes the argument `name` of those that are offered."""
    return name in _sources(func, inspect.signature(func).parameters, offered, True).values()


def as_annotated(func: Callable[..., Any], parameter: str, row: Any, rollout: Rollout) -> Any:
    """Return the row, or a `Task` of it if the parameter of `func` is annotated with `Task`."""
    annotation = inspect.signature(func).parameters[parameter].annotation
    if isinstance(annotation, str):
        annotation = _resolve(annotation, func)
    return Task.of(rollout) if annotation is Task else row


def _resolve(annotation: str, func: Callable[..., Any]) -> Any:
    """Return the object that a string annotation like `types.Task` names in the function's module, or None."""
    inner = inspect.unwrap(getattr(func, "__func__", func))
    first, *rest = annotation.strip("'\"").split(".")
    value = getattr(inner, "__globals__", {}).get(first)
    for name in rest:
        value = getattr(value, name, None)
    return value


def _sources(
    func: Callable[..., Any], parameters: Mapping[str, inspect.Parameter], offered: tuple[str, ...], by_position: bool
) -> dict[str, str]:
    """Return the name of the offered value for each parameter that gets one."""
    sources: dict[str, str] = {}
    for position, (name, parameter) in enumerate(parameters.items()):
        if parameter.kind in _VARIADIC:
            continue
        if name in offered:
            sources[name] = name
        elif parameter.default is inspect.Parameter.empty:
            if not by_position or parameter.kind not in _POSITIONAL or position >= len(offered):
                label = getattr(func, "__qualname__", repr(func))
                raise TypeError(f"{label} asks for {name!r}; on offer are {', '.join(offered)}")
            sources[name] = offered[position]
    return sources


@dataclass(frozen=True)
class RolloutOutcome:
    """Reward and spans of one call."""

    reward: float | None = None
    """Final reward; None if the call gave none."""
    spans: Sequence[Span] = ()
    """Spans to add to the trace, still without ids of rollout and attempt."""


def read_result(result: Any, rollout: Rollout, before: Mapping[str, Any]) -> RolloutOutcome:
    """Return the outcome of an agent. The metadata of a returned `Rollout` are added to `rollout.metadata`.

    Args:
        result: the value that the agent returned.
        rollout: the rollout that it was given.
        before: a shallow copy of `rollout.metadata` from before the call.

    Raises:
        TypeError: the result is neither None, a number, a list of spans nor a rollout, or `metadata["reward"]` is no
            number.
    """
    result = without_array(result)
    if isinstance(result, Real):
        return RolloutOutcome(float(result))
    if isinstance(result, Rollout):
        if result is not rollout:
            rollout.metadata.update(result.metadata)
        traces = result.metadata.get(TRACES_KEY, ())
        spans = traces if _are_spans(traces) else ()
    elif result is None or _are_spans(result):
        spans = result or ()
    else:
        raise TypeError(
            "a rollout returns None, its final reward as a number, a list of spans, or a Rollout with its output, not "
            f"{type(result).__name__}"
        )
    return RolloutOutcome(_set_reward(rollout, before), [_as_span(span) for span in spans])


def read_hook_result(result: Any, rollout: Rollout, before: Mapping[str, Any]) -> float | None:
    """Return the final reward that a hook gave, or None; other results are ignored. Arguments as in `read_result`.

    Raises:
        TypeError: `metadata["reward"]` is no number.
    """
    result = without_array(result)
    if isinstance(result, Real):
        return float(result)
    if isinstance(result, Rollout) and result is not rollout:
        rollout.metadata.update(result.metadata)
    return _set_reward(rollout, before)


def _set_reward(rollout: Rollout, before: Mapping[str, Any]) -> float | None:
    value = without_array(rollout.metadata.get(REWARD_KEY))
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


def _as_span(item: Span | ReadableSpan | SpanCoreFields) -> Span:
    match item:
        case ReadableSpan():
            return Span.from_opentelemetry(item, "", "", 0)
        case SpanCoreFields():  # the result of an emitter with propagate=False
            return Span.from_core_fields(item)
        case _:
            return item.model_copy()
