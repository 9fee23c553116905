"""JSON bodies of the store server, with the numbers and texts of Python's `json`, and bounds on requests.

Large bodies are written and checked in steps, between which other threads run.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any, ClassVar, Final, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError, to_json, to_jsonable_python

from ...http import AT_ONCE as WRITTEN_AT_ONCE
from ...http import RequestLimits, in_steps, parse_json, size_of

T = TypeVar("T")

_DEPTH: Final = 200
"""Levels of nesting, as pydantic bounds them too."""


def encode(value: Any, name: str) -> bytes:
    """Return JSON text; a large value is written in steps.

    Args:
        value: A value of JSON's types and pydantic models.
        name: Name of the value in an error.

    Raises:
        ValueError: it cannot be expressed as JSON; the message names the place.
    """
    try:
        return in_steps(value, _json)
    except (PydanticSerializationError, TypeError, ValueError, RecursionError) as error:
        path, reason = _innermost(value, name, error)
        raise ValueError(f"{path or 'the value'} cannot be sent, since it is not JSON: {reason}") from None


def is_large(value: Any) -> bool:
    """Return True if the JSON text of a value should be written in a thread."""
    return size_of(value, WRITTEN_AT_ONCE) > WRITTEN_AT_ONCE


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
    try:
        loaded = json.loads(text)  # accepts half of a surrogate pair
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return adapter.validate_python(loaded)


def read_json(text: bytes) -> Any:
    """Return the value of a large JSON text, read in steps.

    Raises:
        ValueError: it is no JSON, nested too deeply, or holds too many values.
    """
    return parse_json(text.decode(), keep_halves=True, max_depth=_DEPTH)


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


def _innermost(value: Any, path: str, error: Exception, depth: int = 0) -> tuple[str, Exception]:
    """Return the innermost part of `value` that is not JSON, and the error."""
    inner: Iterable[tuple[str, Any]] = ()
    if isinstance(value, Mapping):
        inner = ((f"{path}.{key}" if path else str(key), part) for key, part in value.items())
    elif isinstance(value, BaseModel):
        inner = ((f"{path}.{key}" if path else key, part) for key, part in value)
    elif isinstance(value, list | tuple):
        inner = ((f"{path}[{index}]", part) for index, part in enumerate(value))
    if isinstance(error, RecursionError) or depth > _DEPTH:  # it may contain itself
        return path, error
    for name, part in inner:
        try:
            _json(part)
        except (PydanticSerializationError, TypeError, ValueError, RecursionError) as inner_error:
            return _innermost(part, name, inner_error, depth + 1)
    return path, error


class StoreLimits(RequestLimits):
    """Bounds on requests to a store server. Waiting requests do not count as concurrent ones, and clients retry."""

    defaults: ClassVar[Mapping[str, Any]] = {"max_body_bytes": 32 * 2**20}


MOST_ITEMS: Final = 65_536
"""Most rollouts, spans or ids of one request."""


class TooManyItemsError(ValueError):
    """A request has, or claims, more than `MOST_ITEMS`."""


def check_counts(arguments: Mapping[str, Any]) -> None:
    """Check the lists of a request, and how many rollouts it claims.

    Raises:
        TooManyItemsError: there are more than `MOST_ITEMS`; the message names the argument.
    """
    for name, value in arguments.items():
        count = len(value) if isinstance(value, list | dict) else value if name == "limit" else 0
        if count > MOST_ITEMS:
            raise TooManyItemsError(f"{name}: {count} are too many, at most {MOST_ITEMS} in one request")


AT_ONCE: Final = 256 * 1024
"""Bytes of a body that are read in one call."""
_STEP_BYTES: Final = 64 * 1024
"""Approximate bytes of a larger body that are checked in one call."""
NAMED_AT_ONCE: Final = 16 * 1024
"""Approximate bytes of named values that are checked in one call: each bad value makes several errors."""


def read_named(body: bytes, adapter: TypeAdapter[Any]) -> Any:
    """Return a body of named values, checked in steps.

    Raises:
        pydantic.ValidationError: it does not fit `adapter`.
    """
    sent = read_json(body)
    if not isinstance(sent, dict):
        return adapter.validate_python(sent)
    step = max(1, NAMED_AT_ONCE * len(sent) // len(body))
    items = iter(sent.items())
    values: dict[str, Any] = {}
    while part := dict(islice(items, step)):
        values |= adapter.validate_python(part)
    return values


def read_fields(body: bytes, fields: TypeAdapter[BaseModel], lists_known: frozenset[str]) -> dict[str, Any]:
    """Return the arguments in a body that is an object, with its lists checked in steps.

    Args:
        body: The body.
        fields: Reads the whole object.
        lists_known: Names of its fields that are lists.

    Raises:
        pydantic.ValidationError: it does not fit `fields`.
        ValueError: an item of a list does not fit.
    """
    sent = read_json(body)
    known = lists_known if isinstance(sent, dict) else frozenset[str]()
    lists = {name: sent[name] for name in known if isinstance(sent.get(name), list)}
    check_counts(lists)
    if not lists:
        return given(fields.validate_python(sent))
    rest = {**sent, **dict.fromkeys(lists, ())}
    arguments = given(fields.validate_python(rest))
    for name, items in lists.items():
        step = max(1, _STEP_BYTES * len(items) // len(body))
        checked: list[Any] = []
        for start in range(0, len(items), step):
            try:
                request = fields.validate_python({**rest, name: items[start : start + step]})
            except ValidationError as error:
                raise ValueError(message_of(error, start)) from None
            checked.extend(getattr(request, name))
        arguments[name] = checked
    return arguments


def given(request: BaseModel) -> dict[str, Any]:
    """Return the fields that are set in a request."""
    return {name: getattr(request, name) for name in request.model_fields_set}


def message_of(error: ValidationError, start: int = 0) -> str:
    """Return one message for all errors of an object; indexes in its lists count from `start`."""
    messages = []
    for fault in error.errors(include_url=False, include_context=False, include_input=False):
        path = [each + start if at == 1 and isinstance(each, int) else each for at, each in enumerate(fault["loc"])]
        messages.append(f"{'.'.join(map(str, path)) or 'body'}: {fault['msg']}")
    return "; ".join(messages)
