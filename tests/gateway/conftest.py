"""Fixtures of the gateway's tests."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import cache

import pytest

from mini_agentic_rl.gateway.constraints import compiler
from mini_agentic_rl.gateway.constraints.compiler import GrammarTrials
from mini_agentic_rl.gateway.http.server import MiniLLMServer
from mini_agentic_rl.gateway.proxy import LLMProxy
from mini_agentic_rl.gateway.settings import GrammarLimits
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


@cache
def _trials(tokenizer: str, end_ids: tuple[int, ...], seconds: float, mib: int) -> GrammarTrials:
    return GrammarTrials(tokenizer, end_ids, GrammarLimits(max_grammar_seconds=seconds, max_grammar_mib=mib))


class SharedTrials:
    """`GrammarTrials` whose process outlives the server: starting one for each test would take half a second."""

    def __init__(self, tokenizer: str, end_ids: Sequence[int], limits: GrammarLimits) -> None:
        self.ask = _trials(tokenizer, tuple(end_ids), limits.max_grammar_seconds, limits.max_grammar_mib).ask

    def close(self) -> None:
        pass


@pytest.fixture
def serve(tokenizer, monkeypatch):
    """Start a server that says the given texts; all are stopped after the test, while the next one runs."""
    monkeypatch.setattr(compiler, "GrammarTrials", SharedTrials)
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
        made = LLMProxy(model_list=model_list, store=store, **{"num_retries": 1, **options})
        await made.start()
        running.append(made)
        return made

    yield start
    for made in running:
        await made.stop(timeout=1)
