"""Large bodies of requests, checked a step at a time: between two steps other threads of the server get their turn."""

from __future__ import annotations

from itertools import islice
from typing import Any, Final

from pydantic import BaseModel, TypeAdapter, ValidationError

from .limits import check_counts
from .wire_json import read_json

AT_ONCE: Final = 256 * 1024
"""Bytes of a body that are read in one call."""
_STEP_BYTES: Final = 64 * 1024
"""Bytes of a larger body that are checked in one call, about."""
NAMED_AT_ONCE: Final = 16 * 1024
"""Bytes of named values that are checked in one call, about: each that is bad makes several errors, and the checking
goes on after the first."""


def read_named(body: bytes, adapter: TypeAdapter[Any]) -> Any:
    """Return a body of named values, checked some of them at a time.

    Raises:
        pydantic.ValidationError: it is something else than `adapter` reads.
    """
    sent = read_json(body)
    if not isinstance(sent, dict):
        return adapter.validate_python(sent)
    step = max(1, NAMED_AT_ONCE * len(sent) // len(body))
    items = iter(sent.items())
    found: dict[str, Any] = {}
    while part := dict(islice(items, step)):
        found |= adapter.validate_python(part)
    return found


def read_fields(body: bytes, fields: TypeAdapter[BaseModel], lists_known: frozenset[str]) -> dict[str, Any]:
    """Return the arguments in a body that is an object, its lists checked a part at a time.

    Args:
        fields: reads the whole of it.
        lists_known: names of its fields that are lists.

    Raises:
        pydantic.ValidationError: it is something else than `fields` reads.
        ValueError: likewise, within a list.
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
        found: list[Any] = []
        for start in range(0, len(items), step):
            try:
                request = fields.validate_python({**rest, name: items[start : start + step]})
            except ValidationError as error:
                raise ValueError(_told(error, name, start)) from None
            found.extend(getattr(request, name))
        arguments[name] = found
    return arguments


def given(request: BaseModel) -> dict[str, Any]:
    """Return the fields that a request has set."""
    return {name: getattr(request, name) for name in request.model_fields_set}


def _told(error: ValidationError, name: str, start: int) -> str:
    """Return what is wrong with items of a list, which are those from `start` on."""
    faults = error.errors(include_url=False, include_context=False, include_input=False)
    paths = [
        [each + start if at == 1 and isinstance(each, int) else each for at, each in enumerate(fault["loc"])]
        for fault in faults
    ]
    return "; ".join(f"{'.'.join(map(str, path))}: {fault['msg']}" for path, fault in zip(paths, faults, strict=True))
