"""The store in MongoDB under the tests of the store contract."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from mini_agentic_rl.store import LightningStore, MongoLightningStore
from store.conftest import MAKERS, opened_store, pass_time, set_clock

from .mongo_server import mongo_url, new_database

__all__ = ["pass_time", "set_clock", "store"]

MAKERS["mongo"] = lambda folder: MongoLightningStore(mongo_url(), new_database(), scan_debounce_seconds=0.0)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[LightningStore]:
    async with opened_store("mongo", tmp_path) as opened:
        yield opened
