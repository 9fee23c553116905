"""What several tests of algorithms share."""

from __future__ import annotations

import pytest

from mini_agentic_rl.metrics import MetricsLogger


class Kept(MetricsLogger):
    """Keeps what a run logs."""

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []

    def log(self, metrics, *, step):
        self.rows.append(dict(metrics))


@pytest.fixture
def kept() -> Kept:
    return Kept()
