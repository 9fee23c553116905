"""What a gateway tells Prometheus, each server in a registry of its own.

Requests are watched at the door, so that both gateways count alike. What others count already (tokens, the engine's
load, conversations) is read when Prometheus asks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from starlette.types import Message, Receive, Send

from .limits import Gate

PREFIX: Final = "mini_agentic_rl_gateway"
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
CLIENT_CLOSED_REQUEST: Final = 499
TOKENS_HELP: Final = "Tokens of prompts, those of them found in a cache, and tokens sampled."

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)


@dataclass(frozen=True)
class Family:
    """Values that are counted or measured elsewhere."""

    name: str
    """Without the prefix."""
    text: str
    """What they are."""
    values: Mapping[tuple[str, ...], float]
    """By the values of the labels."""
    labels: tuple[str, ...] = ("kind",)

    @classmethod
    def by_kind(cls, name: str, text: str, values: Mapping[str, float]) -> Family:
        """With the one label `kind`."""
        return cls(name, text, {(kind,): float(value) for kind, value in values.items()})


class Watch:
    """What is seen of one request at the door."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self.started = time.perf_counter()
        self.first_byte: float | None = None
        """Seconds until the first part of the body was sent."""
        self.status = 0
        self.complete = False
        self.left = False
        """Whether the client went away before the answer was complete."""
        self.broken = False
        """Whether the answer ended in an error after it had begun."""

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


class GatewayMetrics:
    """Counts requests, and gathers what is counted elsewhere.

    Args:
        gate: knows who is inside.
        counted: gives further counters.
        measured: gives further gauges.
    """

    def __init__(
        self, gate: Gate, counted: Callable[[], Iterable[Family]], measured: Callable[[], Iterable[Family]]
    ) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            f"{PREFIX}_requests", "Requests by dialect and outcome.", ["dialect", "outcome"], registry=self._registry
        )
        self._seconds = Histogram(
            f"{PREFIX}_request_seconds",
            "Seconds from the arrival of a request to the end of its answer, by dialect.",
            ["dialect"],
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._first = Histogram(
            f"{PREFIX}_time_to_first_token_seconds",
            "Seconds from the arrival of a request to the first event of its streamed answer, by dialect.",
            ["dialect"],
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._registry.register(_Live(gate, counted, measured))

    def observe(self, dialect: str, watch: Watch, *, streamed: bool) -> None:
        """Count a request that has ended."""
        outcome = watch.outcome
        self._requests.labels(dialect, outcome).inc()
        if outcome == "ok":
            self._seconds.labels(dialect).observe(time.perf_counter() - watch.started)
        if streamed and watch.first_byte is not None:
            self._first.labels(dialect).observe(watch.first_byte)

    def text(self) -> bytes:
        """All of it, in Prometheus' text format."""
        return generate_latest(self._registry)


class _Live(Collector):
    """Reads what is counted elsewhere."""

    def __init__(
        self, gate: Gate, counted: Callable[[], Iterable[Family]], measured: Callable[[], Iterable[Family]]
    ) -> None:
        self._gate = gate
        self._counted = counted
        self._measured = measured

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterable[Metric]:
        gate = self._gate
        inside = {"active": gate.active - gate.waiting, "held": gate.waiting}
        states = {"paused": gate.paused, "draining": gate.draining}
        for family in (
            Family.by_kind("requests_inside", "Requests being answered, and held until a pause ends.", inside),
            Family.by_kind("state", "Whether requests are held or refused at the moment.", states),
            *self._measured(),
        ):
            yield _filled(GaugeMetricFamily, family)
        for family in self._counted():
            yield _filled(CounterMetricFamily, family)


def _filled(kind: type[GaugeMetricFamily] | type[CounterMetricFamily], family: Family) -> Metric:
    metric = kind(f"{PREFIX}_{family.name}", family.text, labels=family.labels)
    for labels, value in family.values.items():
        metric.add_metric(labels, value)
    return metric
