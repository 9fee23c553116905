"""Call a user's function with the arguments that it names, out of those on offer.

`def rollout(self, task)` and `def rollout(self, task, resources, rollout)` are both right. A required parameter with
a name that is not on offer takes the offered value at its own position, so `def rollout(self, sample, resources)` is
right too.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def arguments_for(
    func: Callable[..., Any], offered: Mapping[str, Any], *, by_position: bool = True
) -> tuple[list[Any], dict[str, Any]]:
    """Positional and keyword arguments for `func`, chosen from `offered` (whose order gives the positions).

    With `by_position=False` only names count.

    Raises:
        TypeError: a required parameter is neither on offer by name nor by position.
    """
    values = list(offered.values())
    parameters = inspect.signature(func).parameters
    positional: list[Any] = []
    keywords: dict[str, Any] = {}
    for name, source in _sources(func, parameters, offered, by_position).items():
        value = offered[source] if isinstance(source, str) else values[source]
        if parameters[name].kind is inspect.Parameter.POSITIONAL_ONLY:
            positional.append(value)
        else:
            keywords[name] = value
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
        keywords = {**{name: value for name, value in offered.items() if name not in keywords}, **keywords}
    return positional, keywords


def names_argument(func: Callable[..., Any], name: str, offered: tuple[str, ...]) -> bool:
    """Whether `func` would be given the argument `name`, were all of `offered` on offer."""
    taken = _sources(func, inspect.signature(func).parameters, dict.fromkeys(offered), True).values()
    return name in taken or (name in offered and offered.index(name) in taken)


def _sources(
    func: Callable[..., Any], parameters: Mapping[str, inspect.Parameter], offered: Mapping[str, Any], by_position: bool
) -> dict[str, str | int]:
    """For each parameter that gets a value: the name on offer, or the position of it."""
    sources: dict[str, str | int] = {}
    for position, (name, parameter) in enumerate(parameters.items()):
        if parameter.kind in _VARIADIC:
            continue
        if name in offered:
            sources[name] = name
        elif parameter.default is inspect.Parameter.empty:
            if not by_position or parameter.kind not in _POSITIONAL or position >= len(offered):
                label = getattr(func, "__qualname__", repr(func))
                raise TypeError(f"{label} asks for {name!r}; on offer are {', '.join(offered)}")
            sources[name] = position
    return sources
