"""Spans found in the bytes of an export request, before protobuf's decoder sees them."""

from __future__ import annotations

import gc

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span

from mini_agentic_rl.store.http import otlp
from mini_agentic_rl.store.http.otlp import SpanPlaces, TooMuchError, find_spans, header_of

SOME = ExportTraceServiceRequest(
    resource_spans=[
        ResourceSpans(
            scope_spans=[ScopeSpans(spans=[Span(name="a", events=[Span.Event(name="e")]), Span(trace_id=b"\1" * 16)])],
            schema_url="first",
        ),
        ResourceSpans(schema_url="none"),
        ResourceSpans(scope_spans=[ScopeSpans(), ScopeSpans(spans=[Span(flags=7, start_time_unix_nano=2**63)])]),
    ]
).SerializeToString()


def found_in(body: bytes) -> SpanPlaces:
    finder = find_spans(body)
    while True:
        try:
            next(finder)
        except StopIteration as end:
            return end.value


def as_protobuf_reads(body: bytes) -> list[tuple[str, Span]]:
    request = ExportTraceServiceRequest.FromString(body)
    return [(of.schema_url, span) for of in request.resource_spans for scope in of.scope_spans for span in scope.spans]


def as_found(body: bytes) -> list[tuple[str, Span]]:
    found = found_in(body)
    return [(header_of(body, found, one.group).schema_url, Span.FromString(body[one.start : one.end])) for one in found]


def test_the_collector_of_garbage_has_no_more_to_look_through_for_many_spans_each_of_its_own_attempt() -> None:
    request = ExportTraceServiceRequest()
    for number in range(5000):
        spans = request.resource_spans.add()
        spans.resource.attributes.add(key="agentlightning.attempt_id").value.string_value = str(number)
        spans.scope_spans.add().spans.add(name="a")
    body = request.SerializeToString()
    gc.collect()
    before = len(gc.get_objects())
    found = found_in(body)
    assert len(found) == 5000
    assert len(gc.get_objects()) - before < 100


def test_the_spans_found_are_those_that_protobuf_reads() -> None:
    assert len(as_found(SOME)) == 3
    assert as_found(SOME) == as_protobuf_reads(SOME)
    assert as_found(SOME * 3) == as_protobuf_reads(SOME * 3)


@given(at=st.integers(0, len(SOME)), to=st.integers(0, len(SOME)), noise=st.binary(max_size=12))
def test_bytes_that_protobuf_refuses_are_refused_and_others_read_alike(at: int, to: int, noise: bytes) -> None:
    body = SOME[:at] + noise + SOME[to:]
    try:
        mine = as_found(body)
    except (ValueError, DecodeError) as error:
        if "wire type 3" not in str(error):  # a group, which this protocol has none of
            with pytest.raises(DecodeError):
                ExportTraceServiceRequest.FromString(body)
    else:
        try:
            assert mine == as_protobuf_reads(body)
        except DecodeError:  # of what is not looked at here: texts and attributes outside of spans
            assert body != SOME


@pytest.mark.parametrize("what", ["records", "fields", "fields of a span", "stored bytes"])
def test_a_request_beyond_a_bound_is_told_which(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp, "_FIELDS_A_STEP", 1)
    bounds = {"records": "RECORDS", "fields": "FIELDS", "fields of a span": "FIELDS_OF_SPAN"}
    if what in bounds:
        monkeypatch.setattr(otlp, f"MOST_{bounds[what]}", 2)
        expected = "more than 2 (spans|fields)"
    else:
        monkeypatch.setattr(otlp, "LEAST_STORED_BYTES", 1)
        expected = "stored with its resource each"
    heavy = ResourceSpans(schema_url="x" * 1000, scope_spans=[ScopeSpans(spans=[Span(flags=1)] * 20)])
    with pytest.raises(TooMuchError, match=expected):
        found_in(SOME + ExportTraceServiceRequest(resource_spans=[heavy]).SerializeToString())
