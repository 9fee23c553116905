"""Reading a store a page at a time: by SQL where it is a SQLite file, by the store's own queries elsewhere."""

from .base import Browser, GroupRow, RolloutFilter, RolloutPage, RolloutRow
from .of_store import StoreBrowser
from .sqlite import SqliteBrowser

__all__ = [
    "Browser",
    "GroupRow",
    "RolloutFilter",
    "RolloutPage",
    "RolloutRow",
    "SqliteBrowser",
    "StoreBrowser",
]
