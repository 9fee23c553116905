"""Emit a piece of text."""

from __future__ import annotations

from typing import Any

from ..semconv import AGL_MESSAGE, LightningSpanAttributes
from ..types import SpanCoreFields
from .emit import Links, Tags, described, emit
from .readers import get_message_value

__all__ = ["emit_message", "get_message_value"]


def emit_message(
    message: str,
    attributes: dict[str, Any] | None = None,
    propagate: bool = True,
    *,
    links: Links | None = None,
    tags: Tags | None = None,
) -> SpanCoreFields:
    """Record a text.

    Raises:
        TypeError: the message is no string.
    """
    if not isinstance(message, str):
        raise TypeError(f"emit_message takes a string, not {type(message).__name__}: use emit_object for anything else")
    body = {LightningSpanAttributes.MESSAGE_BODY.value: message}
    return emit(AGL_MESSAGE, {**described(attributes, links, tags), **body}, propagate)
