"""Spans for other tools: traces under OpenTelemetry's conventions for generative AI, sent over OTLP.

`ExportingStore` wraps a store and passes its spans to a `SpanExporter`, which sends each attempt as one
trace when it ends. A background thread sends them; beyond a bound they are dropped and counted, so a run never waits.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
