"""JSON text as values that can be written as text again."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any, Final

MAX_DEPTH: Final = 100
"""Levels of nesting. What reads or writes JSON further on recurses, and fails somewhere beyond 200."""

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def parse_json(text: str) -> Any:
    """The value of a JSON text. Half a surrogate pair, which an escape can make and no encoder takes, is U+FFFD.

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
