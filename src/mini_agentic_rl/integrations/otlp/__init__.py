"""Spans for other tools: traces under OpenTelemetry's conventions for generative AI, sent over OTLP.

`ExportingStore` stands in front of a store and hands what passes to a `SpanExporter`, which sends each attempt as one
trace when it ends. It never makes a run wait: a thread of its own sends, and what finds no room is counted and dropped.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
