"""Metrics of a store server for Prometheus: its requests, and what the store holds when Prometheus asks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, get_args

from ...http import MetricFamily, RequestMetrics
from ...types import RolloutStatus
from ..base import LightningStore

_SECONDS: Final = (0.001, 0.005, 0.02, 0.05, 0.2, 1.0, 5.0, 30.0)
_HELD: Final = ("rollouts", "attempts", "spans", "resources", "workers")


class StoreMetrics:
    """Counts the requests to a store, and asks it for its numbers.

    Args:
        store: called from the event loop that serves.
    """

    def __init__(self, store: LightningStore) -> None:
        self._store = store
        self._items: Mapping[str, float] = {}
        self._rollouts: Mapping[str, float] = {}
        self.requests = RequestMetrics("mini_agentic_rl_store", "kind", _SECONDS)
        self.requests.read_when_asked(self._gauges)

    async def text(self) -> bytes:
        """Return all of it in Prometheus' text format.

        Raises:
            LightningStoreError: the store does not answer.
        """
        held = dict(await self._store.statistics())
        self._items = {kind: float(str(held[name])) for kind in _HELD if (name := f"total_{kind}") in held}
        self._rollouts = {
            status: float((await self._store.query_rollouts(status_in=[status], limit=0)).total)
            for status in get_args(RolloutStatus)
        }
        return self.requests.text()

    def _gauges(self) -> Iterable[MetricFamily]:
        yield MetricFamily.by_kind("items", "What the store holds.", self._items)
        yield MetricFamily(
            "rollouts", "Rollouts by status.", {(name,): count for name, count in self._rollouts.items()}, ("status",)
        )
