"""Metrics of the reward service: its requests by path, what was scored, and how much waits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from prometheus_client import Counter, Histogram

from ...http import MetricFamily, RequestMetrics
from .passes import Batch

_PREFIX: Final = "mini_agentic_rl_scoring"
_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_SIZES: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


class ScoringMetrics(RequestMetrics):
    """Count requests and batches.

    Args:
        queue: texts that wait, and those that are computed, whenever it is asked.
    """

    def __init__(self, queue: Callable[[], Mapping[str, int]]) -> None:
        super().__init__(_PREFIX, "path", _SECONDS)
        registry = self.registry
        self._texts = Counter(f"{_PREFIX}_texts", "Texts that were scored.", registry=registry)
        self._tokens = Counter(f"{_PREFIX}_tokens", "Tokens that went through the model.", registry=registry)
        self._batch = Histogram(f"{_PREFIX}_batch_texts", "Texts of a batch.", buckets=_SIZES, registry=registry)
        self._batch_seconds = Histogram(
            f"{_PREFIX}_batch_seconds", "Seconds that a batch took.", buckets=_SECONDS, registry=registry
        )

        def waiting() -> Iterable[MetricFamily]:
            yield MetricFamily.by_kind("queue", "Texts that wait, and that are computed.", queue())

        self.read_when_asked(waiting)

    def on_batch(self, batch: Batch, seconds: float) -> None:
        """Count a batch."""
        self._texts.inc(len(batch.items))
        self._tokens.inc(batch.tokens)
        self._batch.observe(len(batch.items))
        self._batch_seconds.observe(seconds)
