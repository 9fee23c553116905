"""JSON as clients send it and as they are answered: bounded in depth, and always possible to write as text again."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from .errors import BadRequestError

MAX_DEPTH: Final = 100
"""Levels of nesting. What reads or writes JSON further on recurses, and fails somewhere beyond 200."""

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def parse_json(text: str) -> Any:
    """Return the value of a JSON text. Half a surrogate pair, which an escape can make and no encoder takes, is U+FFFD.

    Raises:
        ValueError: it is no JSON, or nested more than `MAX_DEPTH` levels deep.
    """
    try:
        value = json.loads(text)
    except RecursionError:
        raise _too_deep() from None
    if _depth_is_beyond(MAX_DEPTH, value):
        raise _too_deep()
    if _SURROGATE.search(text) is None:
        return value
    halves = json.dumps(value, ensure_ascii=False).encode("utf-16", "surrogatepass")
    return json.loads(halves.decode("utf-16", "replace"))


def json_object(content: bytes) -> dict[str, Any]:
    """Return the JSON object in a body of UTF-8.

    Raises:
        BadRequestError: it is none.
    """
    try:
        body = parse_json(content.decode("utf-8-sig"))
    except ValueError as error:
        raise BadRequestError(f"the body is not a valid request: it is no JSON ({error})") from None
    if not isinstance(body, dict):
        raise BadRequestError("the body is not a valid request: expected a JSON object")
    return body


_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), check_circular=False)


def encode(value: Mapping[str, Any]) -> bytes:
    """Return compact JSON."""
    return _ENCODER.encode(value).encode("utf-8", "replace")


def _too_deep() -> ValueError:
    return ValueError(f"nested more than {MAX_DEPTH} levels deep")


def _depth_is_beyond(bound: int, value: Any) -> bool:
    level = [value]
    for _ in range(bound):
        level = [child for item in level for child in _children(item) if isinstance(child, dict | list)]
        if not level:
            return False
    return True


def _children(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()
