"""The one way by which every emitter makes its span."""

from __future__ import annotations

import time

from ..tracer.base import Tracer, get_active_tracer
from ..types import Attributes, SpanCoreFields, TraceStatus


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


def emit(name: str, attributes: Attributes, propagate: bool, status: TraceStatus | None = None) -> SpanCoreFields:
    """A span of this instant; recorded in the open trace if `propagate`, else only returned."""
    if propagate:
        return require_tracer(name).create_span(name, attributes, status=status)
    now = time.time()
    return SpanCoreFields(
        name=name, attributes=attributes, status=status or TraceStatus(), start_time=now, end_time=now
    )
