"""Emit any JSON value, or bytes."""

from __future__ import annotations

import base64
import json
from typing import Any

from ..semconv import AGL_OBJECT, LightningSpanAttributes
from ..types import Attributes, SpanCoreFields
from .emit import Links, Tags, described, emit
from .readers import get_object_value

__all__ = ["emit_object", "get_object_value"]


def emit_object(
    object: Any,
    attributes: dict[str, Any] | None = None,
    propagate: bool = True,
    *,
    links: Links | None = None,
    tags: Tags | None = None,
) -> SpanCoreFields:
    """Record a value; `get_object_value` gives an equal one back.

    Raises:
        TypeError: the value is neither bytes nor JSON.
    """
    return emit(AGL_OBJECT, {**described(attributes, links, tags), **_encode(object)}, propagate)


def _encode(value: Any) -> Attributes:
    kind, literal = LightningSpanAttributes.OBJECT_TYPE.value, LightningSpanAttributes.OBJECT_LITERAL.value
    if isinstance(value, str | bool | int | float):
        return {kind: type(value).__name__, literal: str(value)}
    if isinstance(value, bytes):
        return {kind: "bytes", literal: base64.b64encode(value).decode("ascii")}
    try:
        text = json.dumps(value)
    except (TypeError, ValueError) as error:
        raise TypeError(f"emit_object takes bytes or a JSON value, not {type(value).__name__}: {error}") from error
    return {kind: type(value).__name__, LightningSpanAttributes.OBJECT_JSON.value: text}
