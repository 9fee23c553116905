"""Fixtures of the proxy's tests: real upstream servers, a real proxy, everything stopped at the end."""

from __future__ import annotations

import pytest

from mini_agentic_rl.gateway.proxy import LLMProxy

from .fake_upstream import FakeUpstream


@pytest.fixture
def upstream():
    """Start servers of others."""
    running = []

    def start(script=None, **options):
        running.append(FakeUpstream(script, **options))
        return running[-1]

    yield start
    for server in running:
        server.stop()


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


@pytest.fixture
async def rollout(store):
    return await store.start_rollout({"question": "12+30?"})
