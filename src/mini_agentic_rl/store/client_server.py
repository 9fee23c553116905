"""A store over HTTP: the server that shares one, and the client that is one."""

from .http.client import LightningStoreClient
from .http.server import LightningStoreServer

__all__ = ["LightningStoreClient", "LightningStoreServer"]
