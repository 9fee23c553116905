"""Exported spans as an `ExportTraceServiceRequest` of the OpenTelemetry protocol."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, InstrumentationScope, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Status
from opentelemetry.proto.trace.v1.trace_pb2 import Span as ProtoSpan

from ...types import Attributes
from .attempt_trace import ExportedSpan
from .parts import as_json

_SCOPE: Final = "mini_agentic_rl"
_KINDS: Final = {"client": ProtoSpan.SPAN_KIND_CLIENT, "internal": ProtoSpan.SPAN_KIND_INTERNAL}
_STATUS: Final = {"OK": Status.STATUS_CODE_OK, "ERROR": Status.STATUS_CODE_ERROR}
_LARGEST_INTEGER: Final = 2**63


def proto_span(span: ExportedSpan) -> ProtoSpan:
    """Return a span as the protocol has it.

    Raises:
        ValueError: one of its ids is not hexadecimal.
    """
    return ProtoSpan(
        trace_id=bytes.fromhex(span.trace_id),
        span_id=bytes.fromhex(span.span_id),
        parent_span_id=bytes.fromhex(span.parent_id) if span.parent_id else b"",
        name=_told(span.name),
        kind=_KINDS[span.kind],
        start_time_unix_nano=_nanoseconds(span.start_time),
        end_time_unix_nano=_nanoseconds(span.end_time),
        attributes=_attributes(span.attributes),
        events=[
            ProtoSpan.Event(
                name=_told(event.name),
                time_unix_nano=_nanoseconds(event.timestamp or span.end_time),
                attributes=_attributes(event.attributes),
            )
            for event in span.events
        ],
        links=[
            ProtoSpan.Link(
                trace_id=bytes.fromhex(link.context.trace_id),
                span_id=bytes.fromhex(link.context.span_id),
                attributes=_attributes(link.attributes or {}),
            )
            for link in span.links
        ],
        status=Status(
            code=_STATUS.get(span.status.status_code, Status.STATUS_CODE_UNSET),
            message=_told(span.status.description or ""),
        ),
    )


def export_request(spans: Iterable[ProtoSpan], resource: Mapping[str, Any], version: str) -> bytes:
    """Return the encoded request that sends spans of one resource."""
    scope = ScopeSpans(scope=InstrumentationScope(name=_SCOPE, version=version), spans=spans)
    about = Resource(attributes=_attributes(dict(resource)))
    request = ExportTraceServiceRequest(resource_spans=[ResourceSpans(resource=about, scope_spans=[scope])])
    encoded: bytes = request.SerializeToString()
    return encoded


def _attributes(values: Attributes) -> list[KeyValue]:
    return [KeyValue(key=_told(name), value=_value(value)) for name, value in values.items() if value is not None]


def _value(value: Any) -> AnyValue:
    """Return a value of the protocol; what OpenTelemetry has no attribute for becomes JSON text."""
    if isinstance(value, bool):
        return AnyValue(bool_value=value)
    if isinstance(value, int) and -_LARGEST_INTEGER <= value < _LARGEST_INTEGER:
        return AnyValue(int_value=value)
    if isinstance(value, float):
        return AnyValue(double_value=value)
    if isinstance(value, Sequence) and not isinstance(value, str | bytes) and _is_flat(value):
        return AnyValue(array_value=ArrayValue(values=[_value(one) for one in value]))
    return AnyValue(string_value=_told(value if isinstance(value, str) else as_json(value)))


def _is_flat(values: Sequence[Any]) -> bool:
    return all(isinstance(one, str | bool | int | float) for one in values)


def _told(text: str) -> str:
    """Return a text that UTF-8 can carry: half a surrogate pair, which a model may write, becomes a question mark."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _nanoseconds(seconds: float) -> int:
    return max(0, int(seconds * 1e9))
