"""The one way by which every emitter makes its span."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

from ..tracer import Tracer, get_active_tracer
from ..types import Attributes, SpanCoreFields, TraceStatus
from .attributes import flatten
from .links import make_link_attributes, make_tag_attributes

Links = Mapping[str, Any]
Tags = Iterable[str]


def require_tracer(what: str) -> Tracer:
    """The active tracer.

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
    """The attributes that a caller adds to a span: flat ones, links to other spans, tags."""
    return {**flatten(attributes or {}), **make_link_attributes(links or {}), **make_tag_attributes(tags or ())}


def emit(name: str, attributes: Attributes, propagate: bool, status: TraceStatus | None = None) -> SpanCoreFields:
    """A span of this instant; recorded in the open trace if `propagate`, else only returned."""
    if propagate:
        return require_tracer(name).create_span(name, attributes, status=status)
    now = time.time()
    return SpanCoreFields(
        name=name, attributes=attributes, status=status or TraceStatus(), start_time=now, end_time=now
    )
