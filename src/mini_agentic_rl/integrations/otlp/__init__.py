"""Spans for other tools: traces under OpenTelemetry's conventions for generative AI, sent over OTLP.

`ExportingStore` wraps a store and passes its spans to a `SpanExporter`, which sends each attempt as one
trace when it ends. A background thread sends them; beyond a bound they are dropped and counted, so a run never waits.
"""

from .attempt_trace import AttemptFacts, ExportedSpan, attempt_trace
from .span_exporter import ExportingStore, SpanExporter, exported, receiver_url

__all__ = [
    "AttemptFacts",
    "ExportedSpan",
    "ExportingStore",
    "SpanExporter",
    "attempt_trace",
    "exported",
    "receiver_url",
]
