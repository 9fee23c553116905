"""JSON as it stands on the wire: fast, with every number and every text as Python's own module has it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Final, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError, to_json, to_jsonable_python

from ...http import parse_json

T = TypeVar("T")

_DEPTH: Final = 200
"""Levels of nesting, as pydantic bounds them too."""
_STEP: Final = 1000
_NUMBERS: Final = frozenset({int, float, bool, type(None)})
_AT_ONCE: Final = 64 * 1024
"""Characters of JSON, about, that are written in one call."""


def encode(value: Any, name: str) -> bytes:
    """Return JSON text; where it is large, other threads get their turn meanwhile.

    Args:
        value: Built of JSON's own types and pydantic models.
        name: What to call it in an error.

    Raises:
        ValueError: it holds something that JSON cannot express; the message names the place.
    """
    try:
        return _json_in_steps(value)
    except (PydanticSerializationError, TypeError, ValueError, RecursionError) as error:
        path, reason = _innermost(value, name, error)
        raise ValueError(f"{path or 'the value'} cannot be sent, since it is not JSON: {reason}") from None


def is_large(value: Any, bound: int = _AT_ONCE) -> bool:
    """Return True if the JSON text of a value has more than about `bound` characters. Looks at no more than that."""
    left, rest = bound, [value]
    while rest and left >= 0:
        one = rest.pop()
        if isinstance(one, BaseModel):
            one = vars(one)
        if isinstance(one, str):
            left -= len(one)
        elif isinstance(one, dict):
            left -= 16 * len(one)
            if left >= 0:
                rest += one.values()
        elif isinstance(one, list | tuple):
            left -= 8 * len(one)
            if left >= 0:
                rest += one
    return left < 0


def decode(text: bytes, adapter: TypeAdapter[T]) -> T:
    """Return the value of a JSON text.

    Raises:
        pydantic.ValidationError: it is no JSON, or something else than the adapter's type.
    """
    try:
        return adapter.validate_json(text)
    except ValidationError:
        if b"\\ud" not in text:
            raise
    # half of a surrogate pair: Python's own module takes it
    return adapter.validate_python(_loaded(text))


def read_json(text: bytes) -> Any:
    """Return the value of a large JSON text; other threads get their turn meanwhile.

    Raises:
        ValueError: it is no JSON, nested too deeply, or holds too many values.
    """
    return parse_json(text.decode(), keep_halves=True, max_depth=_DEPTH)


def _loaded(text: bytes) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _json(value: Any) -> bytes:
    plain = _plain(value)
    try:
        return to_json(plain, inf_nan_mode="constants")
    except (PydanticSerializationError, UnicodeEncodeError):  # half of a surrogate pair, or not JSON at all
        return json.dumps(plain, default=to_jsonable_python, separators=(",", ":")).encode()


def _json_in_steps(value: Any) -> bytes:
    """Return JSON text, written in calls between which other threads get their turn."""
    if isinstance(value, str) or not is_large(value):
        return _json(value)
    if isinstance(value, list | tuple):
        return b"[" + b",".join(_parts_of_list(value)) + b"]"
    if isinstance(value, dict | BaseModel):
        return b"{" + b",".join(_parts_of_object(dict(value))) + b"}"
    return _json(value)


def _parts_of_list(value: Sequence[Any]) -> Iterable[bytes]:
    for start in range(0, len(value), _STEP):
        part = list(value[start : start + _STEP])
        if _NUMBERS.issuperset(map(type, part)) or not is_large(part):
            yield _json(part)[1:-1]
        else:
            yield from map(_json_in_steps, part)


def _parts_of_object(value: Mapping[Any, Any]) -> Iterable[bytes]:
    items = iter(value.items())
    while part := dict(islice(items, _STEP)):
        if is_large(part):
            for name, one in part.items():
                yield _json({name: None})[1:-5] + _json_in_steps(one)
        else:
            yield _json(part)[1:-1]


def _plain(value: Any, depth: int = 2) -> Any:
    """Return `value` without the models in its outer layers: as JSON, a model writes infinities and NaN as null."""
    if isinstance(value, BaseModel):
        return value.model_dump()
    if depth and isinstance(value, dict):
        return {name: _plain(part, depth - 1) for name, part in value.items()}
    if depth and isinstance(value, list | tuple):
        return [_plain(part, depth - 1) for part in value]
    return value


def _innermost(value: Any, path: str, error: Exception) -> tuple[str, Exception]:
    """Return the innermost part of `value` that cannot be expressed, and why."""
    inner: Iterable[tuple[str, Any]] = ()
    if isinstance(value, Mapping):
        inner = ((f"{path}.{key}" if path else str(key), part) for key, part in value.items())
    elif isinstance(value, BaseModel):
        inner = ((f"{path}.{key}" if path else key, part) for key, part in value)
    elif isinstance(value, list | tuple):
        inner = ((f"{path}[{index}]", part) for index, part in enumerate(value))
    if isinstance(error, RecursionError):
        return path, error
    for name, part in inner:
        try:
            _json(part)
        except (PydanticSerializationError, TypeError, ValueError, RecursionError) as inner_error:
            return _innermost(part, name, inner_error)
    return path, error
