"""Fixtures of the gateway's tests."""

from __future__ import annotations

import pytest

from mini_agentic_rl.gateway.http.server import MiniLLMServer
from mini_agentic_rl.store import InMemoryLightningStore

from .scripted import ScriptedSampler
from .small_tokenizer import small_tokenizer


@pytest.fixture
def tokenizer():
    return small_tokenizer()


@pytest.fixture
def store():
    return InMemoryLightningStore()


@pytest.fixture(scope="session")
def _ok():
    tokenizer = small_tokenizer()
    sampler = ScriptedSampler(tokenizer, ["ok"])
    with MiniLLMServer(sampler, tokenizer, model_name="tiny") as server:
        yield server, sampler


@pytest.fixture
def ok(_ok):
    """A server that says "ok", shared by tests that leave no trace in it but `sampler.requests`; and its sampler."""
    _ok[1].requests.clear()
    return _ok


@pytest.fixture
def serve(tokenizer):
    """Start a server that says the given texts; all are stopped at the end."""
    running = []

    def start(answers, *, store=None, api_key=None, api_keys=(), limits=None, port=0, tool_format="auto", **scripted):
        sampler = ScriptedSampler(tokenizer, answers, **scripted)
        server = MiniLLMServer(
            sampler,
            tokenizer,
            model_name="tiny",
            store=store,
            api_key=api_key,
            api_keys=api_keys,
            limits=limits,
            port=port,
            tool_format=tool_format,
        )
        running.append(server.start())
        return server, sampler

    yield start
    for server in running:
        server.stop(timeout=1)
