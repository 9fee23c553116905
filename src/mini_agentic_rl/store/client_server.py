"""A store over HTTP: the server that shares one, and the client that is one."""

from .client import LightningStoreClient
from .server import LightningStoreServer

__all__ = ["LightningStoreClient", "LightningStoreServer"]
