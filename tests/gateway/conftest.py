"""Fixtures of the gateway's tests."""

from __future__ import annotations

import json
import threading
from typing import ClassVar

import pytest

from mini_agentic_rl.gateway.constraints import compiler
from mini_agentic_rl.gateway.constraints.compiler import _ForkingWorker
from mini_agentic_rl.gateway.http.server import MiniLLMServer
from mini_agentic_rl.gateway.proxy import LLMProxy
from mini_agentic_rl.store import InMemoryLightningStore

from .proxy.fake_upstream import FakeUpstream
from .scripted import ScriptedSampler
from .small_tokenizer import small_tokenizer


@pytest.fixture
def tokenizer():
    return small_tokenizer()


@pytest.fixture
def store():
    return InMemoryLightningStore()


@pytest.fixture
async def rollout(store):
    return await store.start_rollout({"question": "12+30?"})


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


@pytest.fixture(autouse=True)
def _equal_priority(monkeypatch):
    """Trials of slow grammars wait for no other process of this computer."""
    monkeypatch.setattr(compiler, "_SLOW_NICENESS", 0)


class SharedWorker:
    """A worker whose process outlives the server: starting one for each test would take half a second."""

    quick_seconds = _ForkingWorker.quick_seconds
    _by_setup: ClassVar[dict[str, _ForkingWorker]] = {}

    def __init__(self, setup) -> None:
        key = json.dumps(setup)
        if key not in self._by_setup:
            self._by_setup[key] = _ForkingWorker(setup)
        self.run = self._by_setup[key].run

    def close(self) -> None:
        pass


@pytest.fixture
def serve(tokenizer, monkeypatch):
    """Start a server that says the given texts; all are stopped after the test, while the next one runs."""
    monkeypatch.setattr(compiler, "_ForkingWorker", SharedWorker)
    running = []

    def start(answers, *, store=None, api_key=None, limits=None, tool_format="auto", **scripted):
        sampler = ScriptedSampler(tokenizer, answers, **scripted)
        options = {"store": store, "api_key": api_key, "limits": limits, "tool_format": tool_format}
        running.append(MiniLLMServer(sampler, tokenizer, model_name="tiny", **options).start())
        return running[-1], sampler

    yield start
    for server in running:
        threading.Thread(target=server.stop, args=(1,)).start()


@pytest.fixture
def upstream():
    """Start servers of others."""
    running = []

    def start(script=None, **options):
        running.append(FakeUpstream(script, **options))
        return running[-1]

    yield start
    for server in running:
        threading.Thread(target=server.stop).start()


@pytest.fixture
async def proxying(store):
    """Start proxies over entries of a model list, all for the model "policy"."""
    running = []

    async def start(*entries, **options):
        model_list = [{"model_name": "policy", **entry} for entry in entries]
        proxy = LLMProxy(model_list=model_list, store=store, **{"num_retries": 1, **options})
        await proxy.start()
        running.append(proxy)
        return proxy

    yield start
    for proxy in running:
        await proxy.stop(timeout=1)
