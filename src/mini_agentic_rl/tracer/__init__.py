"""Tracers turn what an agent emits into spans of the running attempt, in the store.

`OtelTracer` makes OpenTelemetry spans with parents; `DummyTracer` writes flat spans and costs next to nothing.
`init` turns on OpenTelemetry tracing for the process.
"""

from .base import SpanRecordingContext, Tracer, clear_active_tracer, get_active_tracer, set_active_tracer
from .dummy import DummyTracer
from .otel import OtelTracer
from .process import init
from .trace import Trace

__all__ = [
    "DummyTracer",
    "OtelTracer",
    "SpanRecordingContext",
    "Trace",
    "Tracer",
    "clear_active_tracer",
    "get_active_tracer",
    "init",
    "set_active_tracer",
]
