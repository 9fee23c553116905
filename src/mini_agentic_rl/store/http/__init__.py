"""The store over HTTP: one table of routes, and the server, the client and the OTLP intake made from it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .client import LightningStoreClient as LightningStoreClient
    from .server import LightningStoreServer as LightningStoreServer

_HOME = {"LightningStoreClient": "client", "LightningStoreServer": "server"}

__all__ = ["LightningStoreClient", "LightningStoreServer"]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f".{_HOME[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
