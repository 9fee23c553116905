"""Spans leave a run without holding it up: bounded, counted, told once, and flushed at its end."""

from __future__ import annotations

import asyncio
import json
import logging
import pickle
import time

import pytest
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from integrations.otlp.collector import Collector, facts
from integrations.otlp.recorded import two_calls
from mini_agentic_rl import LitAgent, Trainer, emit_reward
from mini_agentic_rl.errors import UserError
from mini_agentic_rl.integrations.otlp import ExportingStore, SpanExporter, exported, receiver_url
from mini_agentic_rl.integrations.otlp.conventions import ExportedContent
from mini_agentic_rl.store import InMemoryLightningStore, LightningStoreClient
from mini_agentic_rl.tracer import DummyTracer
from mini_agentic_rl.trainer import TraceExportSettings

LOGGER = "mini_agentic_rl.integrations.otlp"


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch):
    for variable in ("ENDPOINT", "TRACES_ENDPOINT", "HEADERS", "TIMEOUT", "COMPRESSION", "PROTOCOL"):
        monkeypatch.delenv(f"OTEL_EXPORTER_OTLP_{variable}", raising=False)


@pytest.fixture(autouse=True)
def _heard(caplog):
    caplog.set_level(logging.INFO, logger=LOGGER)


def exporter_to(url, **how):
    url = f"{url}/v1/traces"
    exporter = OTLPSpanExporter(url, timeout=how.pop("timeout", 5.0))
    return SpanExporter(exporter, url, content=ExportedContent(), resource={"service.name": "tests"}, **how)


async def test_an_attempt_is_sent_when_it_ends_and_not_before(caplog):
    with Collector() as collector:
        exporter = exporter_to(collector.url, agent="calculating", version="1")
        rollout_id = await two_calls(ExportingStore(InMemoryLightningStore(), exporter))
        await asyncio.to_thread(collector.wait_for, 1)
        exporter.close()
    assert len(collector.requests) == 1
    assert collector.spans[0].name == "invoke_agent calculating"
    assert {facts(span)["agentlightning.rollout_id"] for span in collector.spans} == {rollout_id}
    assert facts(collector.spans[0])["agentlightning.status"] == "succeeded"
    (group,) = collector.requests[0].resource_spans
    assert (group.scope_spans[0].scope.name, group.scope_spans[0].scope.version) == ("mini_agentic_rl", "1")
    chat = next(span for span in collector.spans if span.name == "chat policy")
    assert chat.kind == chat.SPAN_KIND_CLIENT
    assert chat.parent_span_id == collector.spans[0].span_id
    assert json.loads(facts(chat)["gen_ai.output.messages"])[0]["role"] == "assistant"
    assert f"7 spans exported to {collector.url}/v1/traces" in caplog.text


async def test_an_attempt_that_is_told_twice_to_have_ended_is_sent_once_and_later_spans_find_it():
    with Collector() as collector:
        exporter = exporter_to(collector.url)
        store = ExportingStore(InMemoryLightningStore(), exporter)
        rollout_id = await two_calls(store, DummyTracer())
        await asyncio.to_thread(collector.wait_for, 1)
        (span,) = (await store.query_spans(rollout_id, limit=1)).items
        attempt = await store.get_latest_attempt(rollout_id)
        await store.update_attempt(rollout_id, attempt.attempt_id, metadata={"told": "again"})
        await store.add_span(span.model_copy(update={"span_id": "ab" * 8, "name": "late", "attributes": {}}))
        await asyncio.to_thread(collector.wait_for, 2)
        exporter.close()
    roots = [span for span in collector.spans if not span.parent_span_id]
    late = collector.spans[-1]
    assert len(roots) == 1
    assert (late.name, late.parent_span_id, late.trace_id) == ("late", roots[0].span_id, roots[0].trace_id)


async def test_what_has_not_ended_is_sent_at_the_end_of_the_run():
    with Collector() as collector:
        exporter = exporter_to(collector.url)
        store = ExportingStore(InMemoryLightningStore(), exporter)
        for status in ("running", "cancelled"):
            rollout = await store.start_rollout({})
            async with DummyTracer().trace_attempt(store, rollout.rollout_id, rollout.attempt.attempt_id):
                emit_reward(0.5)
            if status == "cancelled":
                await store.update_rollout(rollout.rollout_id, status="cancelled")
        exporter.close()
    roots = [facts(span) for span in collector.spans if not span.parent_span_id]
    assert sorted(str(root.get("agentlightning.status")) for root in roots) == ["None", "cancelled"]


def warnings_of(caplog):
    return [record.message for record in caplog.records if record.levelno == logging.WARNING]


async def test_nobody_there_costs_a_run_neither_time_nor_more_than_two_lines(caplog):
    exporter = exporter_to("http://127.0.0.1:9", timeout=0.5)
    store = ExportingStore(InMemoryLightningStore(), exporter)
    for _ in range(3):
        await two_calls(store, DummyTracer())
    begin = time.monotonic()
    exporter.close(seconds=250)
    assert time.monotonic() - begin < 100
    first, second = warnings_of(caplog)
    assert "the run goes on" in first
    assert second == "15 spans were not exported to http://127.0.0.1:9/v1/traces, beside 0 that arrived"


async def test_a_receiver_that_does_not_answer_costs_a_run_spans_and_a_bounded_time_and_memory(caplog):
    collector = Collector(held=True)
    exporter = exporter_to(collector.url, timeout=300.0, most_spans=12, most_characters=30_000)
    store = ExportingStore(InMemoryLightningStore(), exporter)
    for _ in range(6):
        await two_calls(store, DummyTracer())
    assert exporter.dropped == 18
    begin = time.monotonic()
    await asyncio.to_thread(exporter.close, 0.2)
    assert time.monotonic() - begin < 60
    assert (exporter.sent, exporter.dropped) == (0, 30)
    assert caplog.text.count("some are dropped") == 1
    assert warnings_of(caplog)[-1].startswith("30 spans were not exported")
    large = exporter_to("http://127.0.0.1:9", timeout=0.5, most_characters=10_000)
    store = ExportingStore(InMemoryLightningStore(), large)
    rollout = await store.start_rollout({})
    async with DummyTracer().trace_attempt(store, rollout.rollout_id, rollout.attempt.attempt_id) as trace:
        for _ in range(10):
            trace.tracer.create_span("large", {"text": "x" * 3_000})
    assert large.dropped == 7
    assert len(await store.query_spans(rollout.rollout_id)) == 10
    large.close(seconds=0.1)


async def test_refused_spans_are_counted_and_later_ones_are_sent(caplog):
    with Collector(statuses=[401]) as collector:
        exporter = exporter_to(collector.url)
        store = ExportingStore(InMemoryLightningStore(), exporter)
        await two_calls(store, DummyTracer())
        await asyncio.to_thread(collector.wait_for, 1)
        await two_calls(store, DummyTracer())
        await asyncio.to_thread(collector.wait_for, 2)
        exporter.close()
    assert (exporter.dropped, len(collector.requests)) == (5, 1)
    assert "cannot be exported" in caplog.text
    assert "401" in caplog.text
    assert "again" in caplog.text


async def test_a_span_that_cannot_be_told_does_not_end_the_export(caplog):
    with Collector() as collector:
        exporter = exporter_to(collector.url)
        store = ExportingStore(InMemoryLightningStore(), exporter)
        rollout = await store.start_rollout({})
        async with DummyTracer().trace_attempt(store, rollout.rollout_id, rollout.attempt.attempt_id):
            emit_reward(0.5)
        (span,) = await store.query_spans(rollout.rollout_id)
        await store.add_span(span.model_copy(update={"span_id": "no hexadecimal", "name": "\ud800"}))
        await store.update_attempt(rollout.rollout_id, rollout.attempt.attempt_id, status="succeeded")
        await two_calls(store)
        await asyncio.to_thread(collector.wait_for, 1)
        exporter.close()
    assert "could not be exported" in caplog.text
    assert any(span.name == "chat policy" for span in collector.spans)


class Emitting(LitAgent):
    def rollout(self, task):
        emit_reward(float(task["number"]))


def test_a_trainer_exports_what_its_runners_do(monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-key=secret")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_COMPRESSION", "gzip")
    with Collector(statuses=[503]) as collector:  # OpenTelemetry tries again a moment later
        Trainer(n_runners=2, otlp=collector.url).dev(Emitting(), [{"number": 1}, {"number": 0}])
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        Trainer(n_runners=1).dev(Emitting(), [{"number": 2}])
    roots = [facts(span) for span in collector.spans if not span.parent_span_id]
    assert sorted(root["agentlightning.reward"] for root in roots) == [0.0, 1.0, 2.0]
    assert {root["gen_ai.agent.name"] for root in roots} == {"Emitting"}
    assert {headers["x-key"] for headers in collector.headers} == {"secret"}


def test_a_store_elsewhere_is_told_to_export_itself_and_without_an_address_nothing_is_exported(caplog):
    client = LightningStoreClient("http://127.0.0.1:4747")
    with exported(client, TraceExportSettings(otlp="http://localhost:6006")) as store:
        assert store is client
    exporter = exporter_to("http://127.0.0.1:9")
    assert type(pickle.loads(pickle.dumps(ExportingStore(client, exporter)))) is LightningStoreClient
    exporter.close(0.1)
    assert "agl store --otlp http://localhost:6006" in caplog.text
    with exported(InMemoryLightningStore(), TraceExportSettings()) as store:
        assert isinstance(store, InMemoryLightningStore)


def test_the_standard_variables_say_where(monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "https://host:4318/otel/")
    assert receiver_url(TraceExportSettings()) == "https://host:4318/otel/v1/traces"
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://other/traces")
    assert receiver_url(TraceExportSettings()) == "http://other/traces"
    assert receiver_url(TraceExportSettings(otlp="http://mine:6006")) == "http://mine:6006/v1/traces"
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    assert receiver_url(TraceExportSettings()) is None
    assert receiver_url(TraceExportSettings(otlp="http://mine/v1/traces")) == "http://mine/v1/traces"


def test_what_is_no_address_is_told_with_the_setting():
    for address in ("localhost:6006", "grpc://host", "http://", "http://host:99999", "6006"):
        with pytest.raises(UserError, match=r"otlp: .*is no address"):
            receiver_url(TraceExportSettings(otlp=address))


def test_keys_in_an_address_are_not_shown():
    exporter = SpanExporter(
        InMemorySpanExporter(), "https://pk:sk@host/v1/traces", content=ExportedContent(), resource={}
    )
    exporter.close()
    assert exporter.shown == "https://***@host/v1/traces"
