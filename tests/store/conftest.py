"""The stores under test: every contract test runs on each of them."""

from __future__ import annotations

import operator
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from mini_agentic_rl.store import (
    InMemoryLightningStore,
    LightningStore,
    LightningStoreClient,
    LightningStoreServer,
    LightningStoreThreaded,
    SqlLightningStore,
    StoreLimits,
    lifecycle,
)
from mini_agentic_rl.store.base import STORE_METHODS

from .postgres import emptied_database, needs_postgres

MAKERS: dict[str, Callable[[Path], LightningStore]] = {
    "memory": lambda folder: InMemoryLightningStore(),
    "threaded": lambda folder: LightningStoreThreaded(InMemoryLightningStore()),
    "sqlite": lambda folder: SqlLightningStore(folder / "store.db", scan_debounce_seconds=0.0),
    "postgres": lambda folder: SqlLightningStore(emptied_database(), scan_debounce_seconds=0.0),
}
"""Functions that make an empty store of a kind; a test of another backend adds its own."""


def make_store(kind: str, folder: Path) -> LightningStore:
    return MAKERS[kind](folder)


KINDS = [
    "memory",
    "sqlite",
    pytest.param("postgres", marks=needs_postgres),
    "http-sqlite",
]
"""Stores that the tests of the contract run on; those of `test_properties.py` run on the other ones too."""


class _Served(LightningStore):
    """Whichever store is served now: one server serves the store of one test after the other."""

    store: LightningStore = InMemoryLightningStore()
    capabilities = store.capabilities


for _name in STORE_METHODS:
    setattr(_Served, _name, property(operator.attrgetter(f"store.{_name}")))

_SERVED = _Served()
_SERVER = LightningStoreServer(_SERVED, port=0)


@asynccontextmanager
async def opened_store(kind: str, folder: Path) -> AsyncIterator[LightningStore]:
    """An empty store of this kind; "http-…" is a client of a server that shares one."""
    kept = make_store(kind.removeprefix("http-"), folder)
    if not kind.startswith("http-"):
        yield kept
        await kept.close()
        return
    _SERVED.store = kept
    await _SERVER.start()
    client = LightningStoreClient(_SERVER.endpoint)
    yield client
    await client.close()
    await kept.close()


@pytest.fixture(params=KINDS)
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[LightningStore]:
    async with opened_store(request.param, tmp_path) as made:
        yield made


Serve = Callable[..., Awaitable[tuple[LightningStoreServer, LightningStoreClient]]]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Serve a store within limits; return the server and a client of it."""
    opened: list[LightningStoreClient | LightningStoreServer] = []

    async def make(
        store: LightningStore | None = None, *, api_key: str | None = None, limits: Any = None, **options: Any
    ) -> tuple[LightningStoreServer, LightningStoreClient]:
        bounds = StoreLimits(**(limits or {}))
        server = LightningStoreServer(store or InMemoryLightningStore(), port=0, api_key=api_key, limits=bounds)
        await server.start()
        client = LightningStoreClient(server.endpoint, api_key=api_key, **options)
        opened.extend((client, server))
        return server, client

    yield make
    for each in opened:
        await each.close()


@pytest.fixture
def pass_time(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Lets so many seconds pass, on the clock of the day and on the one that nobody sets."""
    now, steady, passed = time.time, lifecycle.steady, [0.0]
    monkeypatch.setattr(time, "time", lambda: now() + sum(passed))
    monkeypatch.setattr(lifecycle, "steady", lambda: steady() + sum(passed))
    return passed.append


@pytest.fixture
def set_clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets the time of day forward by so many seconds, or back, while none pass."""
    now, set_by = time.time, [0.0]
    monkeypatch.setattr(time, "time", lambda: now() + sum(set_by))
    return set_by.append
