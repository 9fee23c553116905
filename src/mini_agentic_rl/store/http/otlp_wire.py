"""The places of the spans in the bytes of an `ExportTraceServiceRequest`, found before protobuf's decoder sees them.

A field of two bytes becomes an object of hundreds, so the fields are counted first, whatever they are nested in, in
steps between which others get their turn. What is within the bounds is then decoded span by span. The messages are
those of the protobuf descriptors; the encoding is that of https://protobuf.dev/programming-guides/encoding/.
"""

from __future__ import annotations

from array import array
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span

MOST_RECORDS: Final = 65_536
"""Most spans, events and links of one request; exporters send 512 spans at a time. More objects than these make at once
would let Python's own collection of garbage hold everybody for longer than a neighbour is promised."""
MOST_FIELDS: Final = 4_000_000
"""Most fields of one request, at all levels; a span has about 10, an attribute 4."""
MOST_FIELDS_OF_SPAN: Final = 1_000_000
"""Most fields of one span: those of the ids and log-probabilities of 200,000 tokens."""
LEAST_STORED_BYTES: Final = 256 * 1024 * 1024
"""A request may become this much when every span is stored with its resource, or four times its own size."""

_FIELDS_A_STEP: Final = 20_000
_DEEPEST: Final = 100
"""Levels of nesting that protobuf's decoder takes."""

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class TooMuchError(ValueError):
    """Report that a request is beyond a bound; its text says which, and what to send instead."""


class FoundSpan(NamedTuple):
    """A span, in the bytes of its request."""

    group: int
    """Number of its resource."""
    start: int
    end: int
    fields: int


class FoundSpans:
    """The spans of a request, as numbers in arrays: Python's collector of garbage would look through as many objects
    while everybody waits."""

    def __init__(self) -> None:
        self._spans = array("Q")
        """Four numbers for each span: those of a `FoundSpan`."""
        self._groups = array("Q")
        """For each resource, how many header fields stand before its own."""
        self._headers = array("Q")
        """Start and end of each header field: a field of a `ResourceSpans` that is not a span."""

    def __len__(self) -> int:
        return len(self._spans) // 4

    def __iter__(self) -> Iterator[FoundSpan]:
        return (FoundSpan(*self._spans[at : at + 4]) for at in range(0, len(self._spans), 4))

    def begin_group(self) -> None:
        """Begin a resource."""
        self._groups.append(len(self._headers) // 2)

    def add_header(self, start: int, end: int) -> None:
        """Add a header field to the resource that was begun last."""
        self._headers.extend((start, end))

    def add(self, start: int, end: int, fields: int) -> None:
        """Add a span of the resource that was begun last."""
        self._spans.extend((len(self._groups) - 1, start, end, fields))

    def header(self, group: int) -> list[tuple[int, int]]:
        """Return the places of the header fields of a resource; together they are a `ResourceSpans` without spans."""
        end = self._groups[group + 1] if group + 1 < len(self._groups) else len(self._headers) // 2
        return [(self._headers[2 * at], self._headers[2 * at + 1]) for at in range(self._groups[group], end)]

    def header_bytes(self) -> int:
        """Return the bytes of the headers, each as often as its resource has spans."""
        sizes = array("Q", (sum(end - start for start, end in self.header(one)) for one in range(len(self._groups))))
        return sum(sizes[group] for group in self._spans[::4])


@dataclass(eq=False)
class _Message:
    """A message of the schema: which of its fields are messages themselves."""

    name: str
    inner: dict[int, _Message] = field(default_factory=dict)


_State: TypeAlias = tuple[int, _Message]


def _schema(descriptor: Any, known: dict[str, _Message]) -> _Message:
    message = known.get(descriptor.full_name)
    if message is None:
        message = known[descriptor.full_name] = _Message(descriptor.full_name)
        for one in descriptor.fields:
            if one.message_type is not None:
                message.inner[one.number] = _schema(one.message_type, known)
    return message


_KNOWN: Final[dict[str, _Message]] = {}
_REQUEST: Final = _schema(ExportTraceServiceRequest.DESCRIPTOR, _KNOWN)
_RESOURCE_SPANS: Final = _KNOWN[ResourceSpans.DESCRIPTOR.full_name]
_SCOPE_SPANS: Final = _KNOWN[ScopeSpans.DESCRIPTOR.full_name]
_SPAN: Final = _KNOWN[Span.DESCRIPTOR.full_name]
_RECORDS: Final = (
    _SPAN,
    _KNOWN[Span.Event.DESCRIPTOR.full_name],
    _KNOWN[Span.Link.DESCRIPTOR.full_name],
)


def find_spans(body: bytes) -> Generator[None, None, FoundSpans]:
    """Return the spans of a request, in their order; yields every 20,000 fields, some 10 ms of work.

    Raises:
        TooMuchError: the request is beyond one of the bounds above.
        ValueError: it is no such message.
    """
    found = FoundSpans()
    above: list[_State] = []
    message, position, end = _REQUEST, 0, len(body)
    fields = records = span_start = fields_before_span = stored = 0
    most_stored = max(LEAST_STORED_BYTES, 4 * len(body))
    while True:
        while position == end:
            if not above:
                _check_stored(stored + found.header_bytes(), most_stored)
                return found
            if message is _SPAN:
                found.add(span_start, end, fields - fields_before_span)
                stored += end - span_start
            end, message = above.pop()
        fields += 1
        if fields % _FIELDS_A_STEP == 0:
            yield
            if fields > MOST_FIELDS:
                raise TooMuchError(f"more than {MOST_FIELDS:,} fields in one request: send fewer spans at once")
            if fields - fields_before_span > MOST_FIELDS_OF_SPAN and _SPAN in (message, *(one for _, one in above)):
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
                raise ValueError(f"a field of {message.name} is longer than what it stands in")
            inner = message.inner.get(number)
            if inner is None:
                position = stop
            else:
                if inner is _SPAN:
                    span_start, fields_before_span = position, fields
                elif inner is _RESOURCE_SPANS:
                    found.begin_group()
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
                found.add_header(start, stop)
        elif kind == _VARINT:
            _, position = _varint(body, position, end)
        elif kind in (_FIXED64, _FIXED32):
            position += 8 if kind == _FIXED64 else 4
            if position > end:
                raise ValueError(f"a number of {message.name} is cut off")
        else:
            raise ValueError(f"wire type {kind}")


def header_of(body: bytes, found: FoundSpans, group: int) -> ResourceSpans:
    """Return the resource of spans.

    Raises:
        google.protobuf.message.DecodeError: it is no well-formed message.
    """
    header = ResourceSpans()
    header.ParseFromString(b"".join(body[start:end] for start, end in found.header(group)))
    return header


def _check_stored(size: int, most: int) -> None:
    if size > most:
        raise TooMuchError(
            f"stored with its resource each, the spans of this request take {size:,} bytes, allowed are {most:,}: "
            "give the resource fewer attributes"
        )


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
