"""The store in MongoDB."""

from .store import MongoLightningStore, open_mongo

__all__ = ["MongoLightningStore", "open_mongo"]
