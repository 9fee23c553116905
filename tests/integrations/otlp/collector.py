"""A collector: an HTTP server that takes spans over OTLP and keeps them."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span as ProtoSpan


class Collector:
    """Takes spans at a free port; a context manager that ends the server.

    Args:
        statuses: answers to the first requests; later ones get 200.
        held: it answers nothing until `answering` is set.
    """

    def __init__(self, statuses: Sequence[int] = (), held: bool = False) -> None:
        self.requests: list[ExportTraceServiceRequest] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self._statuses = list(statuses)
        self._came = threading.Condition()
        self.answering = threading.Event()
        if not held:
            self.answering.set()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                collector.answering.wait()
                with collector._came:
                    status = collector._statuses.pop(0) if collector._statuses else 200
                    collector.paths.append(self.path)
                    collector.headers.append(dict(self.headers))
                    if status == 200:
                        collector.requests.append(ExportTraceServiceRequest.FromString(body))
                    collector._came.notify_all()
                text = b"" if status == 200 else b"not now"
                self.send_response(status)
                self.send_header("content-length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def __enter__(self) -> Collector:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def wait_for(self, requests: int) -> None:
        """Wait until so many requests have come, whatever they were answered."""
        with self._came:
            assert self._came.wait_for(lambda: len(self.paths) >= requests, 60)

    @property
    def spans(self) -> list[ProtoSpan]:
        return [
            span
            for request in self.requests
            for group in request.resource_spans
            for scope in group.scope_spans
            for span in scope.spans
        ]


def facts(span: ProtoSpan) -> dict[str, Any]:
    """Return the attributes of a span as plain values."""
    return {pair.key: _plain(pair.value) for pair in span.attributes}


def _plain(value: Any) -> Any:
    kind = value.WhichOneof("value")
    return [_plain(one) for one in value.array_value.values] if kind == "array_value" else getattr(value, kind)
