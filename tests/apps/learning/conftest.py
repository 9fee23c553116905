"""A gateway that keeps sessions, over a tiny policy and a store in a file."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from mini_agentic_rl.apps.learning import Sessions, UseFolder
from mini_agentic_rl.gateway import MiniLLMServer, ServedPolicy, SessionSettings
from mini_agentic_rl.policy import EngineSettings, LoraSettings
from mini_agentic_rl.store import LightningStore, SqlLightningStore
from tiny import tiny_model, tiny_tokenizer

KEYS = ("alice", "bob")
TOKENIZER = tiny_tokenizer()


@pytest.fixture
def file_store(tmp_path: Path) -> Iterator[LightningStore]:
    store = SqlLightningStore(tmp_path / "sessions.db")
    yield store
    asyncio.run(store.close())


def serve_policy() -> Iterator[ServedPolicy]:
    policy = ServedPolicy.load(
        tiny_model(len(TOKENIZER)), TOKENIZER, lora=LoraSettings(r=4), engine=EngineSettings(cache_mib=64), name="tiny"
    )
    yield policy
    policy.close()


served = pytest.fixture(serve_policy)


@pytest.fixture
def gateway(served: ServedPolicy, file_store: LightningStore) -> Iterator[MiniLLMServer]:
    server = served.serve(store=file_store, api_keys=KEYS, sessions=SessionSettings())
    yield server
    server.stop()


@pytest.fixture
def folder(tmp_path: Path) -> UseFolder:
    return UseFolder(tmp_path / "use")


@pytest.fixture
def alice(gateway: MiniLLMServer) -> Iterator[Sessions]:
    with Sessions(gateway.endpoint, api_key="alice") as sessions:
        yield sessions
