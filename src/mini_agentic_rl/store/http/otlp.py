"""Traces over the OpenTelemetry protocol, as an exporter in any language sends them over HTTP.

A span belongs to the attempt that `agentlightning.rollout_id` and `agentlightning.attempt_id` name, as attributes of
the span or else of its resource. `agentlightning.span_sequence_id`, if it is there, is its place in the order of the
attempt; else the store gives it the next one. Spans that name no known attempt, or are not well formed, are refused in
the answer's `partial_success`, which says why, and logged; the others of the same request are stored. A span that is
sent again is stored once.
"""

from __future__ import annotations

import base64
import logging
from collections.abc import Iterable
from typing import Any, Final

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # it ships no types
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import Span as ProtoSpan

from ...semconv import LightningResourceAttributes
from ...types import Attributes, Event, Link, OtelResource, Span, SpanContext, TraceStatus
from ..base import LightningStore

logger = logging.getLogger(__name__)

PROTOBUF: Final = "application/x-protobuf"

_ROLLOUT: Final = LightningResourceAttributes.ROLLOUT_ID.value
_ATTEMPT: Final = LightningResourceAttributes.ATTEMPT_ID.value
_SEQUENCE: Final = LightningResourceAttributes.SPAN_SEQUENCE_ID.value
_STATUS: Final = {0: "UNSET", 1: "OK", 2: "ERROR"}
_HAS_IS_REMOTE: Final = 0x100
_IS_REMOTE: Final = 0x200
_TO_BE_NUMBERED: Final = 0
_REASONS_TOLD: Final = 5


async def export_response(store: LightningStore, body: bytes) -> bytes:
    """Store the spans of an `ExportTraceServiceRequest`; return the encoded `ExportTraceServiceResponse`.

    Raises:
        ValueError: the body is no such message.
        LightningStoreError: the store cannot take the spans now; send them again.
    """
    request = ExportTraceServiceRequest()
    try:
        request.ParseFromString(body)
    except DecodeError as error:
        raise ValueError(f"the body is no ExportTraceServiceRequest: {error}") from None
    refused = await ingest(store, request)
    response = ExportTraceServiceResponse()
    if refused:
        reasons = list(dict.fromkeys(refused))
        told = "; ".join(reasons[:_REASONS_TOLD])
        if len(reasons) > _REASONS_TOLD:
            told += f"; and {len(reasons) - _REASONS_TOLD} more reasons"
        response.partial_success.rejected_spans = len(refused)
        response.partial_success.error_message = told
        logger.warning("%d spans that came over OTLP were refused: %s", len(refused), told)
    encoded: bytes = response.SerializeToString()
    return encoded


async def ingest(store: LightningStore, request: ExportTraceServiceRequest) -> list[str]:
    """Store the spans of a request.

    Returns:
        Why spans were refused: one reason for each.

    Raises:
        LightningStoreError: the store cannot take the spans now.
    """
    refused: list[str] = []
    by_attempt: dict[tuple[str, str], list[Span]] = {}
    for of_resource in request.resource_spans:
        resource = _resource(of_resource.resource, of_resource.schema_url)
        for of_scope in of_resource.scope_spans:
            for proto in of_scope.spans:
                try:
                    span = span_of(proto, resource)
                except ValueError as error:
                    refused.append(str(error))
                else:
                    by_attempt.setdefault((span.rollout_id, span.attempt_id), []).append(span)
    for ids, spans in by_attempt.items():
        try:
            unnumbered = [span for span in spans if span.sequence_id == _TO_BE_NUMBERED]
            if unnumbered:
                numbers = await store.get_many_span_sequence_ids([ids] * len(unnumbered))
                for span, number in zip(unnumbered, numbers, strict=True):
                    span.sequence_id = number
            await store.add_many_spans(spans)
        except ValueError as error:
            refused += [str(error)] * len(spans)
    return refused


def span_of(proto: ProtoSpan, resource: OtelResource) -> Span:
    """Return the stored form of a span, with `sequence_id` 0 where the sender gives it none.

    Raises:
        ValueError: the span names no attempt, or its ids are not well formed.
    """
    attributes = _attributes(proto.attributes)
    rollout_id = attributes.get(_ROLLOUT, resource.attributes.get(_ROLLOUT))
    attempt_id = attributes.get(_ATTEMPT, resource.attributes.get(_ATTEMPT))
    if not rollout_id or not attempt_id:
        raise ValueError(f"span {proto.name!r} names no attempt: set {_ROLLOUT} and {_ATTEMPT} on it or its resource")
    trace_id = _hexadecimal(proto.trace_id, 16, f"trace id of span {proto.name!r}")
    span_id = _hexadecimal(proto.span_id, 8, f"span id of span {proto.name!r}")
    parent_id = _hexadecimal(proto.parent_span_id, 8, "parent span id") if any(proto.parent_span_id) else None
    from_elsewhere = bool(proto.flags & _HAS_IS_REMOTE and proto.flags & _IS_REMOTE)
    return Span(
        rollout_id=str(rollout_id),
        attempt_id=str(attempt_id),
        sequence_id=_sequence_id(attributes.get(_SEQUENCE, resource.attributes.get(_SEQUENCE))),
        trace_id=trace_id,
        span_id=span_id,
        parent_id=parent_id,
        name=proto.name,
        status=TraceStatus(
            status_code=_STATUS.get(proto.status.code, "UNSET"), description=proto.status.message or None
        ),
        attributes=attributes,
        events=[
            Event(name=event.name, attributes=_attributes(event.attributes), timestamp=_seconds(event.time_unix_nano))
            for event in proto.events
        ],
        links=[
            Link(
                context=SpanContext(
                    trace_id=link.trace_id.hex(),
                    span_id=link.span_id.hex(),
                    is_remote=bool(link.flags & _HAS_IS_REMOTE and link.flags & _IS_REMOTE),
                    trace_state=_trace_state(link.trace_state),
                ),
                attributes=_attributes(link.attributes),
            )
            for link in proto.links
        ],
        start_time=_seconds(proto.start_time_unix_nano),
        end_time=_seconds(proto.end_time_unix_nano),
        context=SpanContext(trace_id=trace_id, span_id=span_id, trace_state=_trace_state(proto.trace_state)),
        parent=SpanContext(trace_id=trace_id, span_id=parent_id, is_remote=from_elsewhere) if parent_id else None,
        resource=resource,
    )


def status_message(text: str) -> bytes:
    """Return an encoded `google.rpc.Status` that says `text`: its field 2, a string."""
    told = text.encode()
    size = len(told)
    length = bytearray()
    while size > 0x7F:
        length.append(size & 0x7F | 0x80)
        size >>= 7
    length.append(size)
    return b"\x12" + bytes(length) + told


def _resource(proto: Resource, schema_url: str) -> OtelResource:
    return OtelResource(attributes=_attributes(proto.attributes), schema_url=schema_url)


def _attributes(pairs: Iterable[KeyValue]) -> Attributes:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(proto: AnyValue) -> Any:
    """Return a value of JSON's types; bytes as base64 text."""
    kind = proto.WhichOneof("value")
    if kind is None:
        return None
    if kind == "array_value":
        return [_value(one) for one in proto.array_value.values]
    if kind == "kvlist_value":
        return _attributes(proto.kvlist_value.values)
    if kind == "bytes_value":
        return base64.b64encode(proto.bytes_value).decode("ascii")
    return getattr(proto, kind)


def _hexadecimal(identity: bytes, size: int, what: str) -> str:
    if len(identity) != size or not any(identity):
        raise ValueError(f"the {what} is {identity.hex() or 'empty'}: expected {size} bytes that are not all zero")
    return identity.hex()


def _sequence_id(given: Any) -> int:
    """Return a positive number of at most 63 bits, or 0 if none such is given."""
    text = str(given)
    number = int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else 0
    return number if number < 2**63 else _TO_BE_NUMBERED


def _seconds(nanoseconds: int) -> float | None:
    return nanoseconds / 1e9 if nanoseconds else None


def _trace_state(header: str) -> dict[str, str]:
    pairs = (member.strip().partition("=") for member in header.split(",") if "=" in member)
    return {key: value for key, _, value in pairs}
