"""What the reward service tells Prometheus, each server in a registry of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from ...gateway.metrics import Watch
from .passes import Batch

PREFIX: Final = "mini_agentic_rl_scoring"

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


class ScoringMetrics:
    """Counts requests and batches.

    Args:
        queue: texts that wait, and those that are computed, whenever it is asked.
    """

    def __init__(self, queue: Callable[[], Mapping[str, int]]) -> None:
        self._registry = registry = CollectorRegistry()
        self._requests = Counter(
            f"{PREFIX}_requests", "Requests by path and outcome.", ["path", "outcome"], registry=registry
        )
        self._seconds = Histogram(
            f"{PREFIX}_request_seconds",
            "Seconds from the arrival of a request to the end of its answer, by path.",
            ["path"],
            buckets=_SECONDS,
            registry=registry,
        )
        self._texts = Counter(f"{PREFIX}_texts", "Texts that were scored.", registry=registry)
        self._tokens = Counter(f"{PREFIX}_tokens", "Tokens that went through the model.", registry=registry)
        self._batch = Histogram(f"{PREFIX}_batch_texts", "Texts of a batch.", buckets=_SIZES, registry=registry)
        self._batch_seconds = Histogram(
            f"{PREFIX}_batch_seconds", "Seconds that a batch took.", buckets=_SECONDS, registry=registry
        )
        registry.register(_Queue(queue))

    def observe(self, path: str, watch: Watch) -> None:
        """Count a request that has ended."""
        outcome = watch.outcome
        self._requests.labels(path, outcome).inc()
        if outcome == "ok":
            self._seconds.labels(path).observe(time.perf_counter() - watch.started)

    def on_batch(self, batch: Batch, seconds: float) -> None:
        """Count a batch."""
        self._texts.inc(len(batch.items))
        self._tokens.inc(batch.tokens)
        self._batch.observe(len(batch.items))
        self._batch_seconds.observe(seconds)

    def text(self) -> bytes:
        """All of it, in Prometheus' text format."""
        return generate_latest(self._registry)


class _Queue(Collector):
    """Reads how much waits when Prometheus asks."""

    def __init__(self, queue: Callable[[], Mapping[str, int]]) -> None:
        self._queue = queue

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterable[Metric]:
        metric = GaugeMetricFamily(f"{PREFIX}_queue", "Texts that wait, and that are computed.", labels=("kind",))
        for kind, count in self._queue().items():
            metric.add_metric((kind,), float(count))
        yield metric
