"""`init`: spans of any instrumented code, inside and outside of rollouts. Each case is a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from opentelemetry import trace

from mini_agentic_rl import InMemoryLightningStore, LightningStoreServer, get_message_value
from mini_agentic_rl.errors import UserError
from mini_agentic_rl.tracer import otel as otel_tracer

BEGIN = """
    import asyncio, json
    from opentelemetry import trace
    library = trace.get_tracer("some.library")  # before init, as an instrumented library does
    import mini_agentic_rl as agl

    def agent(task):
        with library.start_as_current_span("library call"):
            agl.emit_message("inside")

    def run(tracer, **settings):
        store = agl.InMemoryLightningStore()
        settings = {"algorithm": "baseline", "store": store, "n_runners": 2, **settings}
        agl.Trainer(tracer=tracer, **settings).fit(agent, ["a", "b"])
        async def spans():
            found = []
            for rollout in await store.query_rollouts():
                spans = list(await store.query_spans(rollout.rollout_id))
                names = {span.span_id: span.name for span in spans}
                found.append(sorted([s.name, names.get(s.parent_id)] for s in spans if s.name != rollout.rollout_id))
            return found
        return asyncio.run(spans())

    def outside():
        with library.start_as_current_span("outside"):
            pass
        try:
            agl.emit_message("outside")
        except RuntimeError as error:
            return str(error)
"""


def _python(code, **environment):
    program = textwrap.dedent(BEGIN) + textwrap.dedent(code)
    environment = {**os.environ, **environment}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60, env=environment
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_a_librarys_spans_belong_to_the_rollout_they_start_in_whatever_the_tracer():
    found = _python(
        """
        agl.init()
        agl.init()
        print(json.dumps([run(agl.OtelTracer()), run(agl.DummyTracer()), outside()]))
        """
    )
    otel, dummy, error = found
    for spans in otel:
        assert ["agentlightning.message", "library call"] in spans
        assert [name for name, _ in spans].count("library call") == 1
    for spans in dummy:
        assert sorted(name for name, _ in spans) == ["agentlightning.message", "library call"]
    assert "no active tracer" in error


def test_a_provider_that_is_there_is_kept_and_its_exporter_goes_on():
    inside, kept, is_same = _python(
        """
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import SimpleSpanProcessor
        from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
        exporter, provider = InMemorySpanExporter(), TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        trace.set_tracer_provider(provider)
        agl.init()
        inside = run(agl.OtelTracer())
        outside()
        kept = [span.name for span in exporter.get_finished_spans()]
        print(json.dumps([inside, kept, trace.get_tracer_provider() is provider]))
        """
    )
    assert all("library call" in [name for name, _ in spans] for spans in inside)
    assert kept == ["library call", "library call", "outside", "agentlightning.message"]
    assert is_same


def test_a_provider_that_takes_no_processors_is_refused(monkeypatch):
    monkeypatch.setattr(otel_tracer, "_done", [])
    monkeypatch.setattr(trace, "get_tracer_provider", trace.NoOpTracerProvider)
    with pytest.raises(UserError, match="NoOpTracerProvider"):
        otel_tracer.init()


@pytest.fixture
def receiver():
    """An OTLP endpoint that keeps what it is sent: (path, authorization, body)."""
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="sending over OTLP is left unchecked")
    received = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["content-length"]))
            received.append((self.path, self.headers.get("authorization"), body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", received
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("by_environment", [True, False])
def test_an_endpoint_gets_spans_outside_of_rollouts_and_by_the_variable_each_of_a_run_once(receiver, by_environment):
    address, received = receiver
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": address} if by_environment else {"AGL_API_KEY": "secret"}
    argument = "" if by_environment else repr(address)
    inside, error = _python(
        f"agl.init({argument}); print(json.dumps([run(agl.OtelTracer()), outside()]))", **environment
    )
    assert error is None
    assert all("library call" in [name for name, _ in spans] for spans in inside)
    assert {(path, key) for path, key, _ in received} == {("/v1/traces", None if by_environment else "Bearer secret")}
    sent = b"".join(body for _, _, body in received)
    assert b"agentlightning.message" in sent
    assert sent.count(b"library call") == (2 if by_environment else 0)  # a run exports what the variable asks for


def test_an_agent_in_a_process_of_its_own_sends_its_spans_to_the_store(receiver):
    store = InMemoryLightningStore()
    server = LightningStoreServer(store, port=0, api_key="secret")
    asyncio.run(server.start())
    try:
        rollout = asyncio.run(store.start_rollout("task"))
        ids = f"agentlightning.rollout_id={rollout.rollout_id},agentlightning.attempt_id={rollout.attempt.attempt_id}"
        code = f"agl.init({server.endpoint!r}, api_key='secret'); print(json.dumps(outside()))"
        assert _python(code, OTEL_RESOURCE_ATTRIBUTES=ids) is None
    finally:
        asyncio.run(server.stop())
    spans = asyncio.run(store.query_spans(rollout.rollout_id))
    assert [get_message_value(span) or span.name for span in spans] == ["outside", "outside"]


def test_a_process_with_a_tracer_can_fork_as_other_libraries_do():
    """A child that runs Python before its program, as Ray's do, once hung on a lock of an executor."""
    program = """
        import subprocess, sys
        from mini_agentic_rl.tracer import OtelTracer
        tracer = OtelTracer()
        from concurrent.futures import ThreadPoolExecutor
        ThreadPoolExecutor(1).submit(int).result()
        subprocess.run([sys.executable, "-c", ""], preexec_fn=lambda: None, check=True)
        print("forked")
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert process.communicate(timeout=120)[0] == "forked\n"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
