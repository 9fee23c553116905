"""Traces that exporters send over OTLP/HTTP, and the spans found in the bytes of such a request."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import gzip
import struct
from pathlib import Path

import httpx
import pytest
from google.protobuf.message import DecodeError
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans
from opentelemetry.proto.trace.v1.trace_pb2 import Span as ProtoSpan
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import Link as OtelLink
from opentelemetry.trace import Status, StatusCode

from mini_agentic_rl.store import (
    InMemoryLightningStore,
    LightningStoreError,
    LightningStoreServer,
    SqlLightningStore,
)
from mini_agentic_rl.store.http import otlp
from mini_agentic_rl.store.http.otlp import OtlpIntake, SpanPlaces, TooMuchError, find_spans, status_message
from mini_agentic_rl.store.http.otlp import span_of as span_from_proto
from mini_agentic_rl.types import AttemptedRollout, Span

from .conftest import Serve

PROTOBUF = {"Content-Type": "application/x-protobuf"}
LIMIT = 100_000


@pytest.fixture
async def server(serve: Serve) -> LightningStoreServer:
    return (await serve(limits={"max_body_bytes": LIMIT}))[0]


def _names(claimed: AttemptedRollout) -> dict[str, str]:
    return {
        "agentlightning.rollout_id": claimed.rollout_id,
        "agentlightning.attempt_id": claimed.attempt.attempt_id,
    }


async def _post(server: LightningStoreServer, body: bytes, **headers: str) -> httpx.Response:
    async with httpx.AsyncClient() as http:
        return await http.post(server.otlp_traces_endpoint(), content=body, headers=PROTOBUF | headers)


def _rejected(response: httpx.Response) -> tuple[int, str]:
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/x-protobuf"
    told = ExportTraceServiceResponse.FromString(response.content).partial_success
    return told.rejected_spans, told.error_message


def test_a_span_that_came_over_otlp_is_the_span_that_the_sdk_saw() -> None:
    encoder = pytest.importorskip(
        "opentelemetry.exporter.otlp.proto.common.trace_encoder",
        reason="real exporters are left unchecked",
    )
    resource = Resource({"agentlightning.rollout_id": "r", "agentlightning.attempt_id": "a", "k": "v"}, "http://schema")
    tracer = TracerProvider(resource=resource).get_tracer("t")
    with (
        tracer.start_as_current_span("outer") as outer,
        tracer.start_as_current_span(
            "inner",
            attributes={"a": [1.5, 2.5], "b": ["x"], "c": [True], "d": "", "e": -1},
            links=[OtelLink(outer.get_span_context(), {"why": "because"})],
        ) as inner,
    ):
        inner.add_event("event", {"n": [1]})
        inner.set_status(Status(StatusCode.OK))
    for seen in (inner, outer):
        of_resource = encoder.encode_spans([seen]).resource_spans[0]
        proto = of_resource.scope_spans[0].spans[0]
        direct = Span.from_opentelemetry(seen, "r", "a", 0)
        assert span_from_proto(proto, direct.resource) == direct


def _field(number: int, payload: bytes) -> bytes:
    """A length-delimited protobuf field, written by hand."""
    size, length = len(payload), bytearray()
    while size > 127:
        length.append(size % 128 + 128)
        size //= 128
    return bytes([number << 3 | 2]) + bytes([*length, size]) + payload


def _text_attribute(key: str, value: str) -> bytes:
    return _field(1, key.encode()) + _field(2, _field(1, value.encode()))


def _raw_request(attributes: dict[str, str], *, trace_id: bytes = b"\x01" * 16, span_id: bytes = b"\x02" * 8) -> bytes:
    span = _field(1, trace_id) + _field(2, span_id) + _field(5, "naïve".encode())
    span += b"\x39" + struct.pack("<Q", 1_500_000_000) + b"\x41" + struct.pack("<Q", 2_500_000_000)
    span += b"".join(_field(9, _text_attribute(*pair)) for pair in attributes.items())
    return _field(1, _field(1, b"") + _field(2, _field(2, span)))


async def test_bytes_made_by_hand_are_understood(server: LightningStoreServer) -> None:
    claimed = await server.start_rollout("task")
    body = _raw_request({**_names(claimed), "agentlightning.span_sequence_id": "7"})
    response = await _post(server, gzip.compress(body), **{"Content-Encoding": "gzip"})
    assert (response.status_code, response.content) == (200, b"")
    (span,) = await server.query_spans(claimed.rollout_id)
    assert (span.name, span.sequence_id, span.trace_id, span.span_id) == ("naïve", 7, "01" * 16, "02" * 8)
    assert (span.start_time, span.end_time, span.parent_id) == (1.5, 2.5, None)
    again = await _post(server, body)
    assert (again.status_code, again.content) == (200, b"")
    assert (await server.query_spans(claimed.rollout_id)).total == 1


async def test_spans_that_belong_nowhere_are_refused_with_the_reason_and_the_others_are_stored(
    server: LightningStoreServer, caplog: pytest.LogCaptureFixture
) -> None:
    claimed = await server.start_rollout("task")
    strangers = [
        {**_names(claimed), "agentlightning.rollout_id": "ro-none"},
        {**_names(claimed), "agentlightning.attempt_id": "at-none"},
        {"agentlightning.rollout_id": claimed.rollout_id},
        {},
    ]
    parts = [_raw_request(stranger, span_id=bytes([n + 1]) * 8) for n, stranger in enumerate(strangers)]
    parts += [_raw_request(_names(claimed), span_id=b"\x00" * 8), _raw_request(_names(claimed), trace_id=b"\x01")]
    parts += [_raw_request(_names(claimed), span_id=b"\x77" * 8)]
    rejected, reason = _rejected(await _post(server, b"".join(parts)))
    assert rejected == 6
    for told in (
        "of rollout ro-none",
        "no attempt at-none",
        "set agentlightning.rollout_id and",
        "span id",
        "trace id",
    ):
        assert told in reason
    assert "6 spans that came over OTLP were refused" in caplog.text
    assert [span.span_id for span in await server.query_spans(claimed.rollout_id)] == ["77" * 8]


async def test_spans_of_unknown_attempts_cost_no_write_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SqlLightningStore(tmp_path / "store.db")
    claimed = await store.start_rollout("task")
    earlier = _names(claimed)
    later = _names(await store.start_attempt(claimed.rollout_id))
    names = [{**later, "agentlightning.attempt_id": f"at-{number}"} for number in range(30)]
    names += [{**later, "agentlightning.rollout_id": f"ro-{number}"} for number in range(30)]
    body = b"".join(
        _raw_request(attributes, span_id=bytes([number + 1]) * 8)
        for number, attributes in enumerate([*names, earlier, later])
    )
    writes = []
    transaction = store._database.transaction
    monkeypatch.setattr(store._database, "transaction", lambda work: (writes.append(1), transaction(work)))
    refused = ExportTraceServiceResponse.FromString(await OtlpIntake(store).export_response(body))
    assert refused.partial_success.rejected_spans == 60
    assert len(writes) == 1
    assert (await store.query_spans(claimed.rollout_id)).total == 2
    await store.close()


async def test_a_sequence_id_that_is_none_is_replaced_by_the_next_one(server: LightningStoreServer) -> None:
    claimed = await server.start_rollout("task")
    ids = (claimed.rollout_id, claimed.attempt.attempt_id)
    assert await server.get_next_span_sequence_id(*ids) == 1
    for number, given_id in enumerate(["0", "-3", "many", "9" * 30, ""], 1):
        attributes = {**_names(claimed), "agentlightning.span_sequence_id": given_id}
        body = _raw_request(attributes, span_id=bytes([number]) * 8)
        assert _rejected(await _post(server, body)) == (0, "")
    assert [span.sequence_id for span in await server.query_spans(claimed.rollout_id)] == [2, 3, 4, 5, 6]


async def test_what_is_no_export_is_refused_as_otlp_asks(server: LightningStoreServer) -> None:
    def message(response: httpx.Response) -> str:
        assert response.headers["content-type"] == "application/x-protobuf"
        assert response.content[:1] == b"\x12"
        return response.content.decode("utf-8", "replace")

    assert _rejected(await _post(server, b"")) == (0, "")
    broken = await _post(server, b"\xff\xff\xff")
    assert (broken.status_code, "no ExportTraceServiceRequest" in message(broken)) == (400, True)
    json_body = await _post(server, b"{}", **{"Content-Type": "application/json"})
    assert (json_body.status_code, "application/x-protobuf" in message(json_body)) == (415, True)
    large = await _post(server, gzip.compress(b"\0" * (LIMIT + 1)), **{"Content-Encoding": "gzip"})
    assert (large.status_code, f"exceeds {LIMIT} bytes" in message(large)) == (413, True)


async def test_spans_are_asked_for_again_when_the_store_cannot_take_them(serve: Serve) -> None:
    class Full(InMemoryLightningStore):
        async def add_many_spans(self, spans):  # type: ignore[no-untyped-def]  # it never returns
            raise LightningStoreError("the disk is full")

    server, _ = await serve(Full())
    claimed = await server.start_rollout("task")
    response = await _post(server, _raw_request(_names(claimed)))
    assert (response.status_code, response.headers["retry-after"]) == (503, "1")
    assert b"the disk is full" in response.content


@settings(max_examples=20, suppress_health_check=list(HealthCheck), database=None)
@given(noise=st.binary(max_size=200), at=st.integers(0, 400), text=st.text(max_size=300))
def test_no_bytes_break_the_intake(noise: bytes, at: int, text: str) -> None:
    good = _raw_request({"agentlightning.rollout_id": text, "agentlightning.attempt_id": text})

    async def ingest() -> None:
        intake = OtlpIntake(InMemoryLightningStore())
        for body in (noise, good[:at] + noise, good[:at] + noise + good[at:]):
            with contextlib.suppress(ValueError):  # it says that the body is no export
                ExportTraceServiceResponse.FromString(await intake.export_response(body))

    asyncio.run(ingest())
    assert status_message(text).endswith(text.encode())


SOME = ExportTraceServiceRequest(
    resource_spans=[
        ResourceSpans(
            scope_spans=[
                ScopeSpans(
                    spans=[ProtoSpan(name="a", events=[ProtoSpan.Event(name="e")]), ProtoSpan(trace_id=b"\1" * 16)]
                )
            ],
            schema_url="first",
        ),
        ResourceSpans(schema_url="none"),
        ResourceSpans(scope_spans=[ScopeSpans(), ScopeSpans(spans=[ProtoSpan(flags=7, start_time_unix_nano=2**63)])]),
    ]
).SerializeToString()


def found_in(body: bytes) -> SpanPlaces:
    finder = find_spans(body)
    while True:
        try:
            next(finder)
        except StopIteration as end:
            return end.value


def as_protobuf_reads(body: bytes) -> list[tuple[str, ProtoSpan]]:
    request = ExportTraceServiceRequest.FromString(body)
    return [(of.schema_url, span) for of in request.resource_spans for scope in of.scope_spans for span in scope.spans]


def as_found(body: bytes) -> list[tuple[str, ProtoSpan]]:
    found = found_in(body)
    schemas = [ResourceSpans.FromString(header).schema_url for header in found.headers]
    return [(schemas[group], ProtoSpan.FromString(body[start:end])) for group, start, end, _ in found.spans]


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
    assert len(found.spans) == 5000
    gc.collect()
    assert len(gc.get_objects()) - before < 100


@example(at=0, to=len(SOME), noise=SOME * 3)
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
    heavy = ResourceSpans(schema_url="x" * 1000, scope_spans=[ScopeSpans(spans=[ProtoSpan(flags=1)] * 20)])
    with pytest.raises(TooMuchError, match=expected):
        found_in(SOME + ExportTraceServiceRequest(resource_spans=[heavy]).SerializeToString())
