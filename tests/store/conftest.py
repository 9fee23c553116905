"""The stores under test: every contract test runs on each of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from mini_agentic_rl.store import (
    InMemoryLightningStore,
    LightningStore,
    LightningStoreThreaded,
    SqlLightningStore,
)


def make_store(kind: str, folder: Path) -> LightningStore:
    if kind == "memory":
        return InMemoryLightningStore()
    if kind == "threaded":
        return LightningStoreThreaded(InMemoryLightningStore())
    return SqlLightningStore(folder / "store.db", scan_debounce_seconds=0.0)


@pytest.fixture(params=["memory", "sqlite", "threaded"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[LightningStore]:
    made = make_store(request.param, tmp_path)
    yield made
    await made.close()
