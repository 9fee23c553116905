"""Small words of the store contract: UNSET, what a store can do, what it holds, how it fails."""

from __future__ import annotations

import enum
from typing import Final, TypedDict

from ..errors import UserError


class LightningStoreError(UserError, RuntimeError):
    """The store cannot serve: locked, full, damaged, closed or of another version. The message says what to do."""


class StoreUnreachableError(LightningStoreError):
    """The store's server does not answer at the moment."""


class Unset(enum.Enum):
    """Type of `UNSET`, the value of an argument that leaves a field as it is (None may be a value of the field)."""

    UNSET = "UNSET"

    def __repr__(self) -> str:
        return "UNSET"


UNSET: Final = Unset.UNSET


class LightningStoreCapabilities(TypedDict):
    """What callers may rely on."""

    thread_safe: bool
    """Several threads, each with its own event loop, may call it."""
    async_safe: bool
    """Several tasks of one event loop may call it."""
    zero_copy: bool
    """Another process may use it as it is, without a server in between."""
    otlp_traces: bool
    """It takes traces over the OpenTelemetry protocol, at `otlp_traces_endpoint()`."""


class LightningStoreStatistics(TypedDict, total=False):
    """How much a store holds."""

    name: str
    total_rollouts: int
    total_attempts: int
    total_spans: int
    total_resources: int
    total_workers: int
    uptime: float
    """Seconds since the store was opened."""
