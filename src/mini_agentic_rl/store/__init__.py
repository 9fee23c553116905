"""Stores: the queue, the spans and the resources that an algorithm and its runners share.

The stores that stand on a database are loaded when they are asked for, as the database libraries take long to load.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .base import (
    UNSET,
    LightningStore,
    LightningStoreCapabilities,
    LightningStoreError,
    LightningStoreStatistics,
    Unset,
)
from .memory import InMemoryLightningStore
from .threading import LightningStoreThreaded

if TYPE_CHECKING:
    from .mongo.store import MongoLightningStore
    from .sql.store import SqlLightningStore

_HOME = {"MongoLightningStore": "mongo", "SqlLightningStore": "sql"}

__all__ = [
    "UNSET",
    "InMemoryLightningStore",
    "LightningStore",
    "LightningStoreCapabilities",
    "LightningStoreError",
    "LightningStoreStatistics",
    "LightningStoreThreaded",
    "MongoLightningStore",
    "SqlLightningStore",
    "Unset",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOME[name]}", __name__), name)
