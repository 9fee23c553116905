"""Tracers turn what an agent emits into spans of the running attempt, in the store.

`OtelTracer` makes OpenTelemetry spans with parents; `DummyTracer` writes flat spans and costs next to nothing.
`Tracer` is the base of your own.
`init` turns on OpenTelemetry tracing for the process.
"""

from ..compat import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__, __file__)
