"""Stores: the queue, the spans and the resources that an algorithm and its runners share.

`LightningStore` is the contract. `InMemoryLightningStore`, `SqlLightningStore` and `MongoLightningStore` keep the data;
`LightningStoreServer` shares a store over HTTP and `LightningStoreClient` calls one there; `LightningStoreThreaded`
calls one from any thread. `open_store` makes a store from one line of text, `retry_rollouts` queues failed rollouts
again.

Names that need a database driver or the HTTP libraries are loaded when they are asked for, because those load slowly.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .base import (
    STORE_METHODS,
    UNSET,
    LightningStore,
    LightningStoreCapabilities,
    LightningStoreError,
    LightningStoreStatistics,
    Unset,
)
from .lifecycle import LIVE_ATTEMPT_STATUSES, has_ended
from .memory import InMemoryLightningStore
from .open import MEMORY, RUN_STORE_FILE, open_store
from .retry import RETRY_OF, retry_rollouts
from .threading import ForwardingStore, LightningStoreThreaded, forward_methods

if TYPE_CHECKING:
    from .http.client import LightningStoreClient
    from .http.server import LightningStoreServer
    from .mongo import MongoLightningStore
    from .sql import SqlLightningStore

_LATER = {
    "LightningStoreClient": "http.client",
    "LightningStoreServer": "http.server",
    "MongoLightningStore": "mongo",
    "SqlLightningStore": "sql",
}

__all__ = [
    "LIVE_ATTEMPT_STATUSES",
    "MEMORY",
    "RETRY_OF",
    "RUN_STORE_FILE",
    "STORE_METHODS",
    "UNSET",
    "ForwardingStore",
    "InMemoryLightningStore",
    "LightningStore",
    "LightningStoreCapabilities",
    "LightningStoreClient",
    "LightningStoreError",
    "LightningStoreServer",
    "LightningStoreStatistics",
    "LightningStoreThreaded",
    "MongoLightningStore",
    "SqlLightningStore",
    "Unset",
    "forward_methods",
    "has_ended",
    "open_store",
    "retry_rollouts",
]


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_LATER[name]}", __name__), name)
