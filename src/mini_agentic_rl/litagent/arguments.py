"""Call a user's function with the arguments that it names, out of those on offer.

`def rollout(self, task)` and `def rollout(self, task, resources, rollout)` are both right. A required parameter with
a name that is not on offer takes the offered value at its own position, so `def rollout(self, sample, resources)` is
right too.

The task is the row of the data set. A parameter that is annotated with `mini_agentic_rl.types.Task` gets a `Task`
instead, whose `input` is the row: the annotation decides, never the shape of the row.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from ..types import Rollout, Task

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def arguments_for(
    func: Callable[..., Any], offered: Mapping[str, Any], *, by_position: bool = True
) -> tuple[list[Any], dict[str, Any]]:
    """Return positional and keyword arguments for `func`, chosen from `offered`, whose order gives the positions.

    With `by_position=False` only names count.

    Raises:
        TypeError: a required parameter is neither on offer by name nor by position.
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
    """Return True if `func` would be given the argument `name`, were all of `offered` on offer."""
    return name in _sources(func, inspect.signature(func).parameters, offered, True).values()


def as_annotated(func: Callable[..., Any], parameter: str, row: Any, rollout: Rollout) -> Any:
    """Return the row, or the `Task` that holds it where the parameter of `func` is annotated with `Task`."""
    annotation = inspect.signature(func).parameters[parameter].annotation
    if isinstance(annotation, str):
        annotation = _resolve(annotation, func)
    return Task.of(rollout) if annotation is Task else row


def _resolve(annotation: str, func: Callable[..., Any]) -> Any:
    """Return what a written-out annotation like `Task` or `types.Task` names in the function's module, or None."""
    inner = inspect.unwrap(getattr(func, "__func__", func))
    first, *rest = annotation.strip("'\"").split(".")
    found = getattr(inner, "__globals__", {}).get(first)
    for name in rest:
        found = getattr(found, name, None)
    return found


def _sources(
    func: Callable[..., Any], parameters: Mapping[str, inspect.Parameter], offered: tuple[str, ...], by_position: bool
) -> dict[str, str]:
    """Return the name on offer for each parameter that gets a value."""
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
