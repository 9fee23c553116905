"""Numbers that JSON has no words for, found in what clients send: NaN, infinities, and what is beyond any float.

Python's parser takes the words `NaN`, `Infinity` and `-Infinity`, and makes an infinity of `1e999`. Nothing that gets
them further on could be sent to an upstream, answered, or kept by every database.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any, Final, NoReturn

_LONGEST_PLACE: Final = 200
_LONGEST_NUMBER: Final = 40


class NotFiniteError(ValueError):
    """Report such a number; the text is how it was written."""


def _refuse(word: str) -> NoReturn:
    raise NotFiniteError(_shortened(word, _LONGEST_NUMBER))


def _finite(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _refuse(text)


FINITE: Final = json.JSONDecoder(parse_constant=_refuse, parse_float=_finite)
"""Reads JSON, and raises `NotFiniteError` where it holds such a number."""


def place_of_infinite(value: Any) -> str:
    """Return the path to the first such number in a value that was read all the same, as in `metadata.scores[0]`; empty
    where there is none."""
    path: list[int | str] = []
    rest = [_items(value)]
    while rest:
        name, item = next(rest[-1], (None, None))
        if name is None:
            rest.pop()
            del path[-1:]
        elif isinstance(item, dict | list):
            path.append(name)
            rest.append(_items(item))
        elif isinstance(item, float) and not math.isfinite(item):
            return _shortened("".join(map(_step, [*path, name])).removeprefix("."), _LONGEST_PLACE)
    return ""


def _items(value: Any) -> Iterator[tuple[int | str, Any]]:
    if isinstance(value, dict):
        return iter(value.items())
    return enumerate(value) if isinstance(value, list) else iter(())


def _step(name: int | str) -> str:
    return f"[{name}]" if isinstance(name, int) else f".{_shortened(name, _LONGEST_PLACE)}"


def _shortened(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}…"
