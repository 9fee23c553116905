"""The settings of the export of traces."""

from __future__ import annotations

from ..config import Settings


class TraceExportSettings(Settings):
    """Spans that are sent to other tools."""

    otlp: str | None = None
    """Address that gets the spans of every attempt over OTLP (http/protobuf), named as OpenTelemetry's conventions for
    generative AI have them, as http://localhost:6006 for Phoenix; by default OTEL_EXPORTER_OTLP_ENDPOINT. Keys belong
    into OTEL_EXPORTER_OTLP_HEADERS."""
    otlp_messages: bool = True
    """Export what was said: messages, arguments of tools and their results."""
    otlp_tokens: bool = False
    """Export the token ids and log-probabilities of each call as well."""
