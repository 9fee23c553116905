"""Traces over the OpenTelemetry protocol (OTLP over HTTP).

A span belongs to the attempt in `agentlightning.rollout_id` and `agentlightning.attempt_id`, attributes of the span or
of its resource. `agentlightning.span_sequence_id` is its sequence id; without it the store assigns the next one. Spans
of unknown attempts and malformed spans are refused in `partial_success` of the response, with the reason, and logged;
the other spans of the request are stored. A span that is sent again is stored once.

Protobuf's decoder makes objects of hundreds of bytes from fields of two bytes. So `find_spans` first counts the fields
of a request at all levels, and then the spans are decoded one by one. Messages follow the protobuf descriptors, and the
encoding https://protobuf.dev/programming-guides/encoding/.
"""

from __future__ import annotations

import asyncio
import base64
import logging
from collections import Counter, defaultdict
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # it ships no types
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTracePartialSuccess,
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans
from opentelemetry.proto.trace.v1.trace_pb2 import Span as ProtoSpan

from ...semconv import LightningResourceAttributes
from ...types import AttemptedRollout, Attributes, Event, Link, OtelResource, Span, SpanContext, TraceStatus
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
_REASONS_SHOWN: Final = 5
_LONGEST_REASON: Final = 300
_LONGEST_NAME_SHOWN: Final = 100
_SPANS_A_SLICE: Final = 500
_FIELDS_A_SLICE: Final = 20_000
_MOST_TRACE_STATE: Final = 32
"""Members of a trace state, by W3C's Trace Context."""


class OtlpIntake:
    """Store the spans of exporters in slices, which are decoded in one thread for all requests.

    A large request delays others by one slice, some 20 ms.

    Args:
        store: Store for the spans; called from the event loop of the server.
    """

    def __init__(self, store: LightningStore) -> None:
        self._store = store
        self._thread = ThreadPoolExecutor(1, "otlp-intake")

    async def export_response(self, body: bytes) -> bytes:
        """Store the spans of an `ExportTraceServiceRequest`; return the encoded `ExportTraceServiceResponse`.

        Raises:
            TooMuchError: the request is beyond a bound; nothing of it is stored.
            ValueError: the body is no such message; nothing of it is stored.
            LightningStoreError: the store fails; send the spans again.
        """
        run = partial(asyncio.get_running_loop().run_in_executor, self._thread)
        finder, places = find_spans(body), None
        try:
            while places is None:
                places = await run(_stepped, finder)
        except TooMuchError:
            raise
        except ValueError as error:
            raise ValueError(f"the body is no ExportTraceServiceRequest: {error}") from None
        refused: Counter[str] = Counter()
        for part in _slices(places.spans):
            spans = await run(_decoded, body, part, places.headers, refused)
            await _store_spans(self._store, spans, refused)
        response = ExportTraceServiceResponse()
        if refused:
            reasons = "; ".join(list(refused)[:_REASONS_SHOWN])
            if len(refused) > _REASONS_SHOWN:
                reasons += f"; and {len(refused) - _REASONS_SHOWN} more reasons"
            response.partial_success.rejected_spans = refused.total()
            response.partial_success.error_message = reasons
            logger.warning("%d spans that came over OTLP were refused: %s", refused.total(), reasons)
        encoded: bytes = response.SerializeToString()
        return encoded


def _decoded(body: bytes, part: Sequence[SpanPlace], headers: Sequence[bytes], refused: Counter[str]) -> list[Span]:
    """Return the well-formed spans of a slice that name an attempt; count the others as refused."""
    spans = []
    resources = {group: _resource_of(headers[group]) for group in {place[0] for place in part}}
    for group, start, end, _ in part:
        resource = resources[group]
        try:
            if isinstance(resource, DecodeError):
                raise resource
            spans.append(span_of(ProtoSpan.FromString(body[start:end]), resource))
        except DecodeError as error:
            refused[f"a span is not well formed: {error}"[:_LONGEST_REASON]] += 1
        except ValueError as error:
            refused[str(error)[:_LONGEST_REASON]] += 1
    return spans


def _resource_of(header: bytes) -> OtelResource | DecodeError:
    """Return the resource of spans, or the error if it is not well formed."""
    try:
        of_spans = ResourceSpans.FromString(header)
    except DecodeError as error:
        return error
    return OtelResource(attributes=_attributes(of_spans.resource.attributes), schema_url=of_spans.schema_url)


def _stepped(finder: Generator[None, None, SpanPlaces]) -> SpanPlaces | None:
    """Run one step; return the spans at the end."""
    try:
        next(finder)
    except StopIteration as end:
        places: SpanPlaces = end.value
        return places
    return None


def _slices(places: Sequence[SpanPlace]) -> Iterator[list[SpanPlace]]:
    """Yield slices with a bounded number of spans and (except for a single large span) of fields."""
    part: list[SpanPlace] = []
    fields = 0
    for place in places:
        of_span = place[3]
        if part and (len(part) == _SPANS_A_SLICE or fields + of_span > _FIELDS_A_SLICE):
            yield part
            part, fields = [], 0
        part.append(place)
        fields += of_span
    if part:
        yield part


async def _store_spans(store: LightningStore, spans: Sequence[Span], refused: Counter[str]) -> None:
    """Store the spans of known attempts in one write for all attempts; the store numbers those without a number.

    Raises:
        LightningStoreError: the store cannot take them now.
    """
    unknown = await _unknown_attempts(store, {(span.rollout_id, span.attempt_id) for span in spans})
    known: list[Span] = []
    for span in spans:
        if (span.rollout_id, span.attempt_id) in unknown:
            refused[f"no attempt {span.attempt_id} of rollout {span.rollout_id}"[:_LONGEST_REASON]] += 1
        else:
            known.append(span)
    try:
        if known:
            await store.add_many_spans(known)
    except ValueError:  # the store refuses a span, or an attempt was deleted meanwhile
        by_attempt: dict[tuple[str, str], list[Span]] = {}
        for span in known:
            by_attempt.setdefault((span.rollout_id, span.attempt_id), []).append(span)
        for of_attempt in by_attempt.values():
            try:
                await store.add_many_spans(of_attempt)
            except ValueError as error:
                refused[str(error)[:_LONGEST_REASON]] += len(of_attempt)


async def _unknown_attempts(store: LightningStore, attempts: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """Return the (rollout id, attempt id) pairs that are not in the store."""
    wanted: defaultdict[str, set[str]] = defaultdict(set)
    for rollout_id, attempt_id in attempts:
        wanted[rollout_id].add(attempt_id)
    known: set[tuple[str, str]] = set()
    for rollout in await store.query_rollouts(rollout_id_in=list(wanted)):
        if isinstance(rollout, AttemptedRollout):
            known.add((rollout.rollout_id, rollout.attempt.attempt_id))
            if not wanted[rollout.rollout_id] <= {rollout.attempt.attempt_id}:
                earlier = await store.query_attempts(rollout.rollout_id)
                known.update((rollout.rollout_id, attempt.attempt_id) for attempt in earlier)
    return attempts - known


def span_of(proto: ProtoSpan, resource: OtelResource) -> Span:
    """Return the stored form of a span, with `sequence_id` 0 if the sender gives none.

    Raises:
        ValueError: the span names no attempt, or its ids are malformed.
    """
    attributes = _attributes(proto.attributes)
    name = repr(proto.name[:_LONGEST_NAME_SHOWN])
    rollout_id = attributes.get(_ROLLOUT, resource.attributes.get(_ROLLOUT))
    attempt_id = attributes.get(_ATTEMPT, resource.attributes.get(_ATTEMPT))
    if not rollout_id or not attempt_id:
        raise ValueError(f"span {name} names no attempt: set {_ROLLOUT} and {_ATTEMPT} on it or its resource")
    trace_id = _hexadecimal(proto.trace_id, 16, f"trace id of span {name}")
    span_id = _hexadecimal(proto.span_id, 8, f"span id of span {name}")
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
    """Return an encoded `google.rpc.Status` with a message: a string in field 2, as in the class used here."""
    encoded: bytes = ExportTracePartialSuccess(error_message=text).SerializeToString()
    return encoded


def _attributes(pairs: Iterable[KeyValue]) -> Attributes:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(proto: AnyValue) -> Any:
    """Return a value of JSON's types; bytes as base64 text."""
    kind = proto.WhichOneof("value")
    if kind is None:
        return None
    if kind == "array_value":
        return [_value(item) for item in proto.array_value.values]
    if kind == "kvlist_value":
        return _attributes(proto.kvlist_value.values)
    if kind == "bytes_value":
        return base64.b64encode(proto.bytes_value).decode("ascii")
    return getattr(proto, kind)


def _hexadecimal(identity: bytes, size: int, what: str) -> str:
    if len(identity) != size or not any(identity):
        given = identity[: 2 * size].hex() or "empty"
        raise ValueError(f"the {what} is {given}: expected {size} bytes that are not all zero")
    return identity.hex()


def _sequence_id(given: Any) -> int:
    """Return a positive number of at most 63 bits, or 0 if there is none."""
    text = str(given)
    number = int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else 0
    return number if number < 2**63 else _TO_BE_NUMBERED


def _seconds(nanoseconds: int) -> float | None:
    return nanoseconds / 1e9 if nanoseconds else None


def _trace_state(header: str) -> dict[str, str]:
    members = header.split(",", _MOST_TRACE_STATE)[:_MOST_TRACE_STATE]
    pairs = (member.strip().partition("=") for member in members if "=" in member)
    return {key: value for key, _, value in pairs}


MOST_RECORDS: Final = 65_536
"""Most spans, events and links of one request; exporters send 512 spans at a time. With more objects, Python's garbage
collector would pause all requests for too long."""
MOST_FIELDS: Final = 4_000_000
"""Most fields of one request, at all levels; a span has about 10, an attribute 4."""
MOST_FIELDS_OF_SPAN: Final = 1_000_000
"""Most fields of one span: those of the ids and log-probabilities of 200,000 tokens."""
LEAST_STORED_BYTES: Final = 256 * 1024 * 1024
"""Bound of the stored size, in which every span has its resource; or four times the size of the request."""

_FIELDS_A_STEP: Final = 20_000
_DEEPEST: Final = 100
"""Levels of nesting that protobuf's decoder accepts."""

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class TooMuchError(ValueError):
    """A request is beyond a bound; the message says which, and what to send instead."""


SpanPlace: TypeAlias = tuple[int, int, int, int]
"""A span in the bytes of its request: index of its resource, start, end and number of fields.

A plain tuple of numbers, since the garbage collector does not scan these again and again.
"""


class SpanPlaces(NamedTuple):
    """The spans of a request, in order, and their resources."""

    spans: list[SpanPlace]
    headers: list[bytes]
    """For each resource with spans, the encoded `ResourceSpans` without its spans."""


@dataclass(eq=False)
class _Message:
    """A message of the schema, with its fields that are messages."""

    name: str
    inner: dict[int, _Message] = field(default_factory=dict)


_State: TypeAlias = tuple[int, _Message]


def _schema(descriptor: Any, known: dict[str, _Message]) -> _Message:
    message = known.get(descriptor.full_name)
    if message is None:
        message = known[descriptor.full_name] = _Message(descriptor.full_name)
        for field_descriptor in descriptor.fields:
            if field_descriptor.message_type is not None:
                message.inner[field_descriptor.number] = _schema(field_descriptor.message_type, known)
    return message


_KNOWN: Final[dict[str, _Message]] = {}
_REQUEST: Final = _schema(ExportTraceServiceRequest.DESCRIPTOR, _KNOWN)
_RESOURCE_SPANS: Final = _KNOWN[ResourceSpans.DESCRIPTOR.full_name]
_SCOPE_SPANS: Final = _KNOWN[ScopeSpans.DESCRIPTOR.full_name]
_SPAN: Final = _KNOWN[ProtoSpan.DESCRIPTOR.full_name]
_RECORDS: Final = (
    _SPAN,
    _KNOWN[ProtoSpan.Event.DESCRIPTOR.full_name],
    _KNOWN[ProtoSpan.Link.DESCRIPTOR.full_name],
)


def find_spans(body: bytes) -> Generator[None, None, SpanPlaces]:
    """Return the spans of a request, in order; yields every 20,000 fields, about 10 ms of work.

    Raises:
        TooMuchError: the request is beyond one of the bounds above.
        ValueError: it is no such message.
    """
    places = SpanPlaces([], [])
    header = bytearray()
    above: list[_State] = []
    message, position, end = _REQUEST, 0, len(body)
    fields = records = span_start = fields_before_span = stored = first_of_group = 0
    most_stored = max(LEAST_STORED_BYTES, 4 * len(body))
    while True:
        while position == end:
            if message is _SPAN:
                places.spans.append((len(places.headers), span_start, end, fields - fields_before_span))
                stored += end - span_start
            elif message is _RESOURCE_SPANS and len(places.spans) > first_of_group:
                stored += len(header) * (len(places.spans) - first_of_group)
                first_of_group = len(places.spans)
                places.headers.append(bytes(header))
            if not above:
                if stored > most_stored:
                    raise TooMuchError(
                        f"stored with its resource each, the spans of this request take {stored:,} bytes, allowed are "
                        f"{most_stored:,}: give the resource fewer attributes"
                    )
                return places
            end, message = above.pop()
        fields += 1
        if fields % _FIELDS_A_STEP == 0:
            yield
            if fields > MOST_FIELDS:
                raise TooMuchError(f"more than {MOST_FIELDS:,} fields in one request: send fewer spans at once")
            if fields - fields_before_span > MOST_FIELDS_OF_SPAN and _SPAN in (message, *(outer for _, outer in above)):
                raise TooMuchError(f"more than {MOST_FIELDS_OF_SPAN:,} fields in one span: send fewer attributes")
        start, within = position, message
        tag, position = _varint(body, position, end)
        kind, number = tag & 7, tag >> 3
        if not 0 < number < 2**29:
            raise ValueError(f"field number {number}")
        if kind == _BYTES:
            length, position = _varint(body, position, end)
            stop = position + length
            if stop > end:
                raise ValueError(f"a field of {message.name} is longer than the message around it")
            inner = message.inner.get(number)
            if inner is None:
                position = stop
            else:
                if inner is _SPAN:
                    span_start, fields_before_span = position, fields
                elif inner is _RESOURCE_SPANS:
                    header.clear()
                if inner in _RECORDS:
                    records += 1
                    if records > MOST_RECORDS:
                        raise TooMuchError(
                            f"more than {MOST_RECORDS:,} spans, events and links in one request: send fewer at once"
                        )
                if len(above) >= _DEEPEST:
                    raise ValueError(f"nested more than {_DEEPEST} levels deep")
                above.append((end, message))
                end, message = stop, inner
            if within is _RESOURCE_SPANS and inner is not _SCOPE_SPANS:
                header += body[start:stop]
        elif kind == _VARINT:
            _, position = _varint(body, position, end)
        elif kind in (_FIXED64, _FIXED32):
            position += 8 if kind == _FIXED64 else 4
            if position > end:
                raise ValueError(f"a number of {message.name} is cut off")
        else:
            raise ValueError(f"wire type {kind}")


def _varint(body: bytes, position: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while position < end and shift < 70:
        byte = body[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    raise ValueError("a number is cut off" if position >= end else "a number of more than 64 bits")
