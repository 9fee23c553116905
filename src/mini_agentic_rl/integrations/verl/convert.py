"""Reading single values of a verl configuration. Each converter raises `ValueError` with what it expected."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

Convert = Callable[[Any], Any]


def flatten(config: Mapping[Any, Any]) -> dict[str, Any]:
    """Dotted key to value, out of nested mappings, dotted keys or a mixture; a later one wins.

    A leading `+`, with which verl's command line adds a key, is dropped. Lists become tuples.
    """
    flat: dict[str, Any] = {}
    for key, value in config.items():
        name = str(key).lstrip("+")
        if isinstance(value, Mapping):
            flat |= {f"{name}.{inner}": item for inner, item in flatten(value).items()}
        elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
            flat[name] = tuple(value)
        else:
            flat[name] = value
    return flat


def number(value: Any) -> float:
    """A number; YAML reads 1e-6 as text, which is taken as well."""
    if isinstance(value, bool):
        raise ValueError("expected a number")
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ValueError("expected a number") from None


def whole(value: Any) -> int:
    """A whole number."""
    found = number(value)
    if found != int(found):
        raise ValueError("expected a whole number")
    return int(found)


def text(value: Any) -> str:
    """A text."""
    if not isinstance(value, str):
        raise ValueError("expected a text")
    return value


def truth(value: Any) -> bool:
    """True or False, also as text."""
    found = {"true": True, "false": False}.get(str(value).lower())
    if found is None:
        raise ValueError("expected True or False")
    return found


def numbers(value: Any) -> tuple[float, ...]:
    """A list of numbers."""
    if not isinstance(value, tuple):
        raise ValueError("expected a list of numbers")
    return tuple(map(number, value))


def modules(value: Any) -> str | tuple[str, ...]:
    """`all-linear`, a pattern, or a list of names of layers."""
    return tuple(map(text, value)) if isinstance(value, tuple) else text(value)


def one_of(choices: Mapping[str, Any]) -> Convert:
    """One of some words, turned into what it stands for here."""

    def convert(value: Any) -> Any:
        if str(value) not in choices:
            raise ValueError(f"expected one of {', '.join(choices)}")
        return choices[str(value)]

    return convert


def positive(value: Any) -> int | None:
    """A whole number; -1 and 0 mean that it is not set."""
    found = whole(value)
    return found if found > 0 else None
