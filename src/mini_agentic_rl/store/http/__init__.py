"""The store over HTTP: one table of routes, and the server, the client and the OTLP intake made from it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .client import LightningStoreClient
    from .server import LightningStoreServer

__all__ = ["LightningStoreClient", "LightningStoreServer"]

_LATER = {"LightningStoreClient": "client", "LightningStoreServer": "server"}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(import_module(f".{_LATER[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
