"""The pool over real vLLM servers, started by it, with the embedded model. `make test-real VLLM_PYTHON=…` runs it."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import httpx
import psutil
import pytest
import torch

from mini_agentic_rl.gateway import ServedPolicy
from mini_agentic_rl.policy import DEFAULT_ADAPTER, LoraSettings
from mini_agentic_rl.samplers import SamplerPool, SamplerSettings
from mini_agentic_rl.tokens import SamplingParams, TokenRequest
from samplers.vllm_wire import until_all_are_well

PARITY_BOUND = 0.3
"""On texts that repeat themselves for 600 tokens bfloat16 alone differs by 0.08 to 0.11."""


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    python = os.environ.get("VLLM_PYTHON")
    assert python, "VLLM_PYTHON has to be the Python of an environment with vLLM"
    settings = SamplerSettings(
        sampler="vllm",
        vllm_python=Path(python),
        sampler_replicas=2,
        sampler_args="--max-model-len 1024",
        sampler_folder=tmp_path_factory.mktemp("sampler"),
        parity_bound=PARITY_BOUND,
    )
    found = ServedPolicy.load("embedded", lora=LoraSettings(), sampler=settings, seed=1)
    yield found
    found.close()


def step(policy):
    def job():
        for parameter in policy.model.trainable():  # at random: all the same way is a change that no training makes
            parameter.data += 0.01 * torch.randn_like(parameter)
        policy.model.versions[DEFAULT_ADAPTER] += 1

    policy.run(job)


async def sample(served, tokens=48, **given):
    prompt = tuple(served.tokenizer.encode("Once there was a river that"))
    request = TokenRequest(prompt, SamplingParams(max_tokens=tokens, seed=5), DEFAULT_ADAPTER, **given)
    return [delta async for delta in served.sampler.complete(request)]


def counted(pool, name):
    """Return a counter of the servers, added up."""
    told = [httpx.get(f"{replica.url}/metrics", trust_env=False).text for replica in pool.replicas]
    found = [
        float(line.rsplit(" ", 1)[1]) for text in told for line in text.splitlines() if line.startswith(f"{name}{{")
    ]
    assert found, name
    return sum(found)


async def test_no_key_of_older_weights_is_found_by_newer_ones(served):
    """The first that new weights are asked, in the parity check, is what older ones were asked last."""
    pool = served.sampler
    await served.publish()
    texts = ("The river", "A small dog", "Prices of wheat", "In winter the lake")
    prompts = [tuple(served.tokenizer.encode(f"{text} went on and on" + " and on" * 300)) for text in texts]

    async def ask(prompt):
        request = TokenRequest(prompt, SamplingParams(max_tokens=2, seed=5), DEFAULT_ADAPTER, affinity="one place")
        return [delta async for delta in pool.complete(request)][-1].cached_tokens

    before = counted(pool, "vllm:prefix_cache_hits_total")
    assert [await ask(prompt) for prompt in prompts] == [0] * 4
    assert counted(pool, "vllm:prefix_cache_hits_total") == before
    found = await ask(prompts[0])
    assert found > 0
    after = counted(pool, "vllm:prefix_cache_hits_total")
    assert after == before + found
    for prompt in prompts:
        await ask(prompt)  # the last four prompts, each once
    after = counted(pool, "vllm:prefix_cache_hits_total")
    asked = counted(pool, "vllm:prefix_cache_queries_total")
    step(served.policy)
    await served.publish()
    assert counted(pool, "vllm:prefix_cache_queries_total") > asked + 4 * 300
    assert counted(pool, "vllm:prefix_cache_hits_total") == after
    assert await ask(prompts[3]) > 0


async def test_new_weights_reach_every_server_and_a_killed_one_comes_back(served):
    pool = served.sampler
    assert isinstance(pool, SamplerPool)
    await served.publish()
    before = served.policy.version
    assert {delta.version for delta in await sample(served)} == {before}
    step(served.policy)
    await served.publish()
    assert all(replica.difference < PARITY_BOUND for replica in pool.replicas)
    assert {delta.version for delta in await sample(served)} == {before + 1}
    victim = pool.replicas[0]
    port = int(victim.url.rpartition(":")[2])
    (process,) = (
        one
        for one in psutil.Process().children(recursive=True)
        if str(port) in one.cmdline() and "serve" in one.cmdline()
    )

    async def kill_while_it_samples():
        while victim.in_flight < 2:
            await asyncio.sleep(0.05)
        await asyncio.sleep(2.0)
        process.kill()

    answers = [sample(served, 192, affinity=f"r{index}", delivery="whole") for index in range(6)]
    *deltas, _ = await asyncio.gather(*answers, kill_while_it_samples())
    for one in deltas:
        assert sum(len(delta.token_ids) for delta in one) == 192
        assert {delta.version for delta in one} == {served.policy.version}
    await until_all_are_well(pool, 600.0)
    assert victim.difference < PARITY_BOUND
