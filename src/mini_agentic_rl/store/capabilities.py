"""A store's word about itself: what callers may rely on, and how much it holds."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, TypedDict

WORKERS_AT_ONCE: Final = 1000
"""Heartbeats that one call of a store takes."""


class LightningStoreCapabilities(TypedDict):
    """Properties of a store that callers may rely on."""

    thread_safe: bool
    """True if several threads, each with its own event loop, may call the store."""
    async_safe: bool
    """True if several tasks of one event loop may call the store."""
    zero_copy: bool
    """True if another process may use the store as it is, without a server in between."""
    otlp_traces: bool
    """True if the store takes traces over the OpenTelemetry protocol, at `otlp_traces_endpoint()`."""


class LightningStoreStatistics(TypedDict, total=False):
    """Numbers of items that a store holds."""

    name: str
    total_rollouts: int
    total_attempts: int
    total_spans: int
    total_resources: int
    total_workers: int
    uptime: float
    """Seconds since the store was opened."""


def check_heartbeats(heartbeats: Collection[str]) -> None:
    """Raise a ValueError where there are more than `WORKERS_AT_ONCE`."""
    if len(heartbeats) > WORKERS_AT_ONCE:
        raise ValueError(f"{len(heartbeats)} heartbeats: at most {WORKERS_AT_ONCE} at once")
