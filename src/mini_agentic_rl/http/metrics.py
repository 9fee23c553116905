"""Metrics of one server for Prometheus, in a registry of its own.

Requests are watched from their arrival to the last byte of their response. What others count already (tokens, queues,
an engine's load) is read when Prometheus asks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from starlette.types import Message, Receive, Send

METRICS_CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
CLIENT_CLOSED_REQUEST: Final = 499
"""Status that stands for a client which went away; nobody reads it."""


@dataclass(frozen=True)
class MetricFamily:
    """Values that are counted or measured elsewhere."""

    name: str
    """Without the prefix."""
    text: str
    """Description of the values."""
    values: Mapping[tuple[str, ...], float]
    """By the values of the labels."""
    labels: tuple[str, ...] = ("kind",)

    @classmethod
    def by_kind(cls, name: str, text: str, values: Mapping[str, float]) -> MetricFamily:
        """Return a family with the one label `kind`."""
        return cls(name, text, {(kind,): float(value) for kind, value in values.items()})


class RequestWatch:
    """Observe one request and its response as they pass."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self.started = time.perf_counter()
        self.first_byte: float | None = None
        """Seconds until the first part of the body was sent."""
        self.status = 0
        self.complete = False
        self.left = False
        """True if the client went away before the response was complete."""
        self.broken = False
        """True if the response ended in an error after it had begun."""

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.disconnect" and not self.complete:
            self.left = True
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        elif message["type"] == "http.response.body":
            if self.first_byte is None and message.get("body"):
                self.first_byte = time.perf_counter() - self.started
            self.complete = not message.get("more_body", False)
        await self._send(message)

    @property
    def outcome(self) -> str:
        """`ok`, `cancelled` (the client went away), `refused` (a fault of the request, or a bound), `failed`."""
        if self.left or self.status == CLIENT_CLOSED_REQUEST:
            return "cancelled"
        if self.broken or not self.complete or self.status >= 500:
            return "failed"
        return "refused" if self.status >= 400 else "ok"


class RequestMetrics:
    """Count requests, and gather what is counted elsewhere.

    Args:
        prefix: of all names.
        label: what requests are told apart by, as in "path".
        seconds: bounds of the histograms of seconds.
        streams: measure the time to the first event of streamed responses too.
    """

    def __init__(self, prefix: str, label: str, seconds: Sequence[float], *, streams: bool = False) -> None:
        self.prefix = prefix
        self.registry = CollectorRegistry()
        """Registry for counters of a server's own."""
        self._requests = Counter(
            f"{prefix}_requests", f"Requests by {label} and outcome.", [label, "outcome"], registry=self.registry
        )

        def histogram(name: str, until: str) -> Histogram:
            text = f"Seconds from the arrival of a request to {until}, by {label}."
            return Histogram(f"{prefix}_{name}", text, [label], buckets=seconds, registry=self.registry)

        self._seconds = histogram("request_seconds", "the end of its answer")
        self._first = (
            histogram("time_to_first_token_seconds", "the first event of its streamed answer") if streams else None
        )

    def read_when_asked(
        self,
        gauges: Callable[[], Iterable[MetricFamily]],
        counters: Callable[[], Iterable[MetricFamily]] = lambda: (),
    ) -> None:
        """Tell these families too, with the values that they have whenever Prometheus asks."""
        self.registry.register(_WhenAsked(self.prefix, gauges, counters))

    def observe(self, name: str, watch: RequestWatch, *, streamed: bool = False) -> None:
        """Count a request that has ended."""
        outcome = watch.outcome
        self._requests.labels(name, outcome).inc()
        if outcome == "ok":
            self._seconds.labels(name).observe(time.perf_counter() - watch.started)
        if streamed and self._first is not None and watch.first_byte is not None:
            self._first.labels(name).observe(watch.first_byte)

    def text(self) -> bytes:
        """Return all of it in Prometheus' text format."""
        return generate_latest(self.registry)


class _WhenAsked(Collector):
    def __init__(
        self,
        prefix: str,
        gauges: Callable[[], Iterable[MetricFamily]],
        counters: Callable[[], Iterable[MetricFamily]],
    ) -> None:
        self._prefix = prefix
        self._gauges = gauges
        self._counters = counters

    def describe(self) -> Iterable[Metric]:
        return []  # the registry would collect to learn the names, before there is anything to collect

    def collect(self) -> Iterable[Metric]:
        for kind, families in ((GaugeMetricFamily, self._gauges()), (CounterMetricFamily, self._counters())):
            for family in families:
                metric = kind(f"{self._prefix}_{family.name}", family.text, labels=family.labels)
                for labels, value in family.values.items():
                    metric.add_metric(labels, value)
                yield metric
