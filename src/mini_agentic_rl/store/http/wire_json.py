"""JSON as it stands on the wire: fast, with every number and every text as Python's own module has it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError, to_json, to_jsonable_python

from ...http import AT_ONCE, in_steps, parse_json, size_of

T = TypeVar("T")

_DEPTH: Final = 200
"""Levels of nesting, as pydantic bounds them too."""


def encode(value: Any, name: str) -> bytes:
    """Return JSON text; where it is large, other threads get their turn meanwhile.

    Args:
        value: Built of JSON's own types and pydantic models.
        name: What to call it in an error.

    Raises:
        ValueError: it holds something that JSON cannot express; the message names the place.
    """
    try:
        return in_steps(value, _json)
    except (PydanticSerializationError, TypeError, ValueError, RecursionError) as error:
        path, reason = _innermost(value, name, error)
        raise ValueError(f"{path or 'the value'} cannot be sent, since it is not JSON: {reason}") from None


def is_large(value: Any) -> bool:
    """Return True if the JSON text of a value is better written in steps. Looks at no more of it than that takes."""
    return size_of(value, AT_ONCE) > AT_ONCE


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
