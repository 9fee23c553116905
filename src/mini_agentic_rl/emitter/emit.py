"""Emit spans: exceptions, messages, objects and marks of trainable agents, and what every emitter shares."""

from __future__ import annotations

import base64
import json
import logging
import time
from collections.abc import Iterable, Mapping
from typing import Any, Final

from pydantic import BaseModel

from ..semconv import AGL_ANNOTATION, AGL_EXCEPTION, AGL_MESSAGE, AGL_OBJECT, LightningSpanAttributes
from ..tracer import Tracer, exception_facts, get_active_tracer
from ..types import Attributes, SpanCoreFields, TraceStatus
from .links import make_link_attributes, make_tag_attributes

logger = logging.getLogger(__name__)

Links = Mapping[str, Any]
Tags = Iterable[str]

OK: Final = TraceStatus(status_code="OK")
"""Status of what is recorded to be read back: an annotation, a reward, an object."""

_SCALARS = (str, bool, int, float)


def require_tracer(what: str) -> Tracer:
    """Return the active tracer.

    Raises:
        RuntimeError: there is none in this task.
    """
    tracer = get_active_tracer()
    if tracer is None:
        raise RuntimeError(
            f"{what} has no active tracer: call it inside a rollout or trace_context(), or pass propagate=False. "
            "A thread of your own must run inside contextvars.copy_context()"
        )
    return tracer


def described(attributes: Mapping[str, Any] | None, links: Links | None, tags: Tags | None) -> Attributes:
    """Return the attributes that a caller adds to a span: flat ones, links to other spans, tags."""
    return {**flatten(attributes or {}), **make_link_attributes(links or {}), **make_tag_attributes(tags or ())}


def emit(name: str, attributes: Attributes, propagate: bool, status: TraceStatus | None = None) -> SpanCoreFields:
    """Make a span of this instant. It is recorded in the open trace if `propagate`, else only returned."""
    if propagate:
        return require_tracer(name).create_span(name, attributes, status=status)
    now, status = time.time(), (status or OK).model_copy()
    return SpanCoreFields(name=name, attributes=attributes, status=status, start_time=now, end_time=now)


def flatten(values: Mapping[str, Any]) -> Attributes:
    """Turn nested mappings and lists of mappings into attributes with dotted names.

    None is left out, and any value that OpenTelemetry does not accept becomes JSON text.
    `{"a": {"b": 1}, "c": [{"d": 2}]}` becomes `{"a.b": 1, "c.0.d": 2}`.
    """
    flat: Attributes = {}
    for key, value in values.items():
        flat.update(_flatten_one(str(key), value))
    return flat


def _flatten_one(key: str, value: Any) -> Attributes:
    if value is None:
        return {}
    if isinstance(value, _SCALARS):
        return {key: value}
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json")
    if isinstance(value, Mapping):
        return flatten({f"{key}.{name}": item for name, item in value.items()})
    if isinstance(value, list | tuple):
        if any(isinstance(item, Mapping | BaseModel) for item in value):
            return flatten({f"{key}.{index}": item for index, item in enumerate(value)})
        for kind in _SCALARS:
            if all(type(item) is kind for item in value):
                return {key: list(value)}
    return {key: json.dumps(value, default=repr)}


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
        TypeError: `exception` is no exception.
    """
    if not isinstance(exception, BaseException):
        raise TypeError(f"emit_exception takes an exception, not {type(exception).__name__}")
    status = TraceStatus(status_code="ERROR", description=f"{type(exception).__name__}: {exception}")
    return emit(AGL_EXCEPTION, {**described(attributes, links, tags), **exception_facts(exception)}, propagate, status)


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
        RuntimeError: the value is neither bytes nor JSON.
    """
    return emit(AGL_OBJECT, {**described(attributes, links, tags), **_encode(object)}, propagate, OK)


def _encode(value: Any) -> Attributes:
    kind, literal = LightningSpanAttributes.OBJECT_TYPE.value, LightningSpanAttributes.OBJECT_LITERAL.value
    if isinstance(value, str | bool | int | float):
        return {kind: type(value).__name__, literal: str(value)}
    if isinstance(value, bytes):
        return {kind: "bytes", literal: base64.b64encode(value).decode("ascii")}
    try:
        text = json.dumps(value)
    except (TypeError, ValueError) as error:
        raise RuntimeError(f"emit_object takes bytes or a JSON value, not {type(value).__name__}: {error}") from error
    return {kind: type(value).__name__, LightningSpanAttributes.OBJECT_JSON.value: text}


def emit_trainable_agent(agent_id: str) -> None:
    """Record in the open trace that an agent is marked as trainable; outside of every trace, only log it.

    `Rollout.mark_agent_as_trainable` calls it, once `litagent` is imported.
    """
    if get_active_tracer() is None:
        logger.warning("agent %r is marked outside of its rollout: only the rollout object knows of it", agent_id)
        return
    emit(AGL_ANNOTATION, {LightningSpanAttributes.TRAINABLE_AGENT.value: agent_id}, propagate=True)
