"""Emit an exception."""

from __future__ import annotations

import traceback
from typing import Any

from ..semconv import AGL_EXCEPTION
from ..types import SpanCoreFields, TraceStatus
from .emit import Links, Tags, described, emit


def emit_exception(
    exception: BaseException,
    attributes: dict[str, Any] | None = None,
    propagate: bool = True,
    *,
    links: Links | None = None,
    tags: Tags | None = None,
) -> SpanCoreFields:
    """Record an exception as a span with status ERROR: its type, its message and its stack.

    Raises:
        TypeError: `exception` is none.
    """
    if not isinstance(exception, BaseException):
        raise TypeError(f"emit_exception takes an exception, not {type(exception).__name__}")
    facts = {
        "exception.type": type(exception).__qualname__,
        "exception.message": str(exception),
        "exception.stacktrace": "".join(
            traceback.format_exception(type(exception), exception, exception.__traceback__)
        ),
        "exception.escaped": True,
    }
    status = TraceStatus(status_code="ERROR", description=f"{type(exception).__name__}: {exception}")
    return emit(AGL_EXCEPTION, {**described(attributes, links, tags), **facts}, propagate, status)
