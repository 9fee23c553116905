"""The numbers of a run for Prometheus, at a port of this process that only tells.

Every metric of `metrics.jsonl` is one series of `mini_agentic_rl_training_metric`, told apart by its name, so that a
dashboard need not know them before.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Final

from prometheus_client import CollectorRegistry, Gauge, start_http_server

from ..errors import UserError
from .base import MetricsLogger

logger = logging.getLogger(__name__)

PREFIX: Final = "mini_agentic_rl_training"


class PrometheusLogger(MetricsLogger):
    """Serves the latest number of every metric as `http://host:port/metrics` until it is closed.

    Args:
        port: 0 takes a free one.
        host: address to listen on.

    Raises:
        UserError: the port cannot be had.
    """

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        registry = CollectorRegistry()

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"{PREFIX}_{name}", text, labels, registry=registry)

        self._metric = gauge("metric", "Latest number of a metric of metrics.jsonl.", "name")
        self._step = gauge("step", "Step that the latest numbers belong to.")
        self._logged = gauge("logged_seconds", "Time of the latest numbers, in seconds since the epoch.")
        self._done = gauge("phase_done", "Units of a phase that are done.", "phase")
        self._total = gauge("phase_total", "Units of a phase, where their number is known.", "phase")
        self._phase = ""
        self._closed = False
        try:
            self._server, self._thread = start_http_server(port, host, registry)
        except OSError as error:
            raise UserError(
                f"port {port} at {host} cannot be had for the numbers of the run: {error.strerror or error}",
                setting="metrics_port",
            ) from error
        self.port: int = self._server.server_port
        logger.info("Prometheus reads the numbers of the run at http://%s:%d/metrics", host, self.port)

    def phase(self, name: str, total: int | None = None) -> None:
        self._phase = name
        self._done.labels(name).set(0)
        if total is not None:
            self._total.labels(name).set(total)

    def advance(self, n: int = 1) -> None:
        self._done.labels(self._phase).inc(n)

    def log(self, metrics: Mapping[str, float], *, step: int) -> None:
        for name, value in metrics.items():
            self._metric.labels(name).set(float(value))
        self._step.set(step)
        self._logged.set(time.time())

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()
