"""Stores: the queue, the spans and the resources that an algorithm and its runners share."""

from .base import (
    UNSET,
    LightningStore,
    LightningStoreCapabilities,
    LightningStoreError,
    LightningStoreStatistics,
    Unset,
)
from .memory import InMemoryLightningStore
from .sql import SqlLightningStore
from .threading import LightningStoreThreaded

__all__ = [
    "UNSET",
    "InMemoryLightningStore",
    "LightningStore",
    "LightningStoreCapabilities",
    "LightningStoreError",
    "LightningStoreStatistics",
    "LightningStoreThreaded",
    "SqlLightningStore",
    "Unset",
]
