"""Tracers record the emitted facts of an agent as spans of the running attempt, and send them to the store.

`OtelTracer` makes OpenTelemetry spans with parents; `DummyTracer` writes flat spans at little cost. `Tracer` is the
base of user-defined tracers. `init` turns on OpenTelemetry tracing for the process.
"""

from ..compat import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__, __file__)
