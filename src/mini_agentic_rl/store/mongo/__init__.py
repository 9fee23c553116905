"""The store in MongoDB."""

from .store import MongoLightningStore

__all__ = ["MongoLightningStore"]
