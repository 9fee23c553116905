"""JSON written in steps, between which other threads get their turn.

One call of an encoder holds all other threads up until it returns: with eight million numbers that is seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

from pydantic import BaseModel

from .json_text import encode

AT_ONCE: Final = 64 * 1024
"""Characters of JSON, about, that are written in one call."""
_STEP: Final = 1000
_NUMBERS: Final = frozenset({int, float, bool, type(None)})


def size_of(value: Any, most: int) -> int:
    """Return about how many characters the JSON text of a value has. The look ends soon after `most`."""
    size, rest = 0, [value]
    while rest and size <= most:
        one = rest.pop()
        if isinstance(one, BaseModel):
            one = vars(one)
        if isinstance(one, str):
            size += len(one)
        elif isinstance(one, dict):
            size += 16 * len(one)
            if size <= most:
                rest += one.values()
        elif isinstance(one, list | tuple):
            size += 8 * len(one)
            if size <= most:
                rest += one
    return size


def encode_in_steps(value: Any) -> bytes:
    """Return what `encode` returns, of any value."""
    return in_steps(value, encode)


def in_steps(value: Any, write: Callable[[Any], bytes]) -> bytes:
    """Return the JSON text of a value.

    Args:
        value: built of JSON's own types and pydantic models.
        write: gives the compact text of a part that is not large.

    Raises:
        Exception: what `write` raises.
    """
    if isinstance(value, str) or size_of(value, AT_ONCE) <= AT_ONCE:
        return write(value)
    if isinstance(value, list | tuple):
        return b"[" + b",".join(_parts_of_list(value, write)) + b"]"
    if isinstance(value, dict | BaseModel):
        return b"{" + b",".join(_parts_of_object(dict(value), write)) + b"}"
    return write(value)


def _parts_of_list(value: Sequence[Any], write: Callable[[Any], bytes]) -> Iterator[bytes]:
    for start in range(0, len(value), _STEP):
        part = list(value[start : start + _STEP])
        if _NUMBERS.issuperset(map(type, part)) or size_of(part, AT_ONCE) <= AT_ONCE:
            yield write(part)[1:-1]
        else:
            yield from (in_steps(one, write) for one in part)


def _parts_of_object(value: Mapping[Any, Any], write: Callable[[Any], bytes]) -> Iterator[bytes]:
    items = iter(value.items())
    while part := dict(islice(items, _STEP)):
        if size_of(part, AT_ONCE) > AT_ONCE:
            for name, one in part.items():
                yield write({name: None})[1:-5] + in_steps(one, write)
        else:
            yield write(part)[1:-1]
