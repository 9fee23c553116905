"""A pool of servers, over servers that speak vLLM's wire with our engine behind: the same tokens, whatever happens."""

from __future__ import annotations

import asyncio
import copy
import threading
import time
from contextlib import contextmanager

import numpy as np
import pytest
import torch

from mini_agentic_rl.errors import UserError
from mini_agentic_rl.http import BadRequestError
from mini_agentic_rl.policy import DEFAULT_ADAPTER, EngineSettings, LoraSettings, Policy
from mini_agentic_rl.processes import in_cancellable_thread
from mini_agentic_rl.samplers import ParityError, PolicySampler, SamplerSettings, make_sampler
from mini_agentic_rl.samplers import pool as pool_module
from mini_agentic_rl.tokens import SamplingParams, TokenRequest
from samplers.vllm_wire import SLOTS, Faults, VllmWireServer
from tiny import tiny_model

PROMPTS = [[5, 6, 7, 8], [20, 21, 22]]
PROMPT = tuple(range(3, 40))
LORA = LoraSettings(r=4, alpha=8)


SERVERS: list[VllmWireServer] = []
"""Started once for all tests."""


@pytest.fixture(scope="module")
def base():
    yield tiny_model()
    while SERVERS:
        SERVERS.pop().close()


def fresh_servers(base, count):
    """Return servers as they are after their start."""
    while len(SERVERS) < count:
        SERVERS.append(VllmWireServer(copy.deepcopy(base), lora=LORA))
    for server in SERVERS[:count]:
        server.faults, server.slots = Faults(), list(SLOTS)
        for seen in (server.asked, server.loaded, server.ever_loaded):
            seen.clear()
    return SERVERS[:count]


@pytest.fixture(autouse=True)
def _quick_checks(monkeypatch):
    monkeypatch.setattr(pool_module, "_WATCH_SECONDS", 0.05)


def make_policy(base, lora=LORA):
    return Policy.load(copy.deepcopy(base), lora=lora, engine=EngineSettings(cache_mib=8), device="cpu", seed=1)


def step(policy):
    """Change the weights as an optimizer step does, by more than rounding."""

    def job():
        generator = torch.Generator().manual_seed(policy.version)
        for parameter in policy.model.trainable():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.data += 0.3 * noise
        policy.model.versions[DEFAULT_ADAPTER] += 1

    policy.run(job)


class Stage:
    """A learner, servers, and the pool of them."""

    def __init__(self, policy, servers, pool):
        self.policy = policy
        self.servers = servers
        self.pool = pool

    async def publish(self):
        await self.pool.publish(DEFAULT_ADAPTER, self.policy.version, self.policy.save)

    async def deltas(self, **given):
        return [delta async for delta in self.pool.complete(request(**given))]


def request(
    *, tokens=12, seed=3, adapter=DEFAULT_ADAPTER, temperature=1.0, affinity="", delivery="stepwise", **sampling
):
    settings = SamplingParams(temperature=temperature, max_tokens=tokens, seed=seed, **sampling)
    return TokenRequest(PROMPT, settings, adapter, affinity=affinity, delivery=delivery)


@contextmanager
def stage(base, tmp_path, *, learner=None, servers=1, faults=None, lora=LORA, note=print, **settings):
    policy = make_policy(learner or base, lora)
    started = fresh_servers(base, servers)
    pool = None
    try:
        for server in started:
            for name, value in (faults or {}).items():
                setattr(server.faults, name, value)
        pool = make_sampler(
            SamplerSettings(
                sampler="vllm",
                sampler_folder=tmp_path / "weights",
                **{
                    "sampler_url": [server.url for server in started],
                    "sampler_timeout": 60.0,
                    "sampler_wait": 0.0,
                    **settings,
                },
            ),
            policy,
            base_name="base",
            prompts=PROMPTS,
            least_context=64,
            note=note,
        )
        yield Stage(policy, started, pool)
    finally:
        if pool is not None:
            pool.close()
        policy.close()


def together(deltas):
    ids = [token for delta in deltas for token in delta.token_ids]
    logprobs = [value for delta in deltas for value in delta.logprobs]
    return ids, logprobs, deltas[-1].finish_reason, {delta.version for delta in deltas}


async def until(condition, seconds=60.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it has not come about"
        await asyncio.sleep(0.01)


async def test_servers_sample_the_tokens_that_the_own_engine_samples(base, tmp_path):
    with stage(base, tmp_path) as on:
        step(on.policy)
        await on.publish()
        own = PolicySampler(on.policy.engine, base_name="base", adapters=[DEFAULT_ADAPTER], context_length=512)
        for given in (
            {},
            {"temperature": 0.6, "top_logprobs": 3},
            {"adapter": None},
            {"stop_token_ids": tuple(range(0, 300, 7))},
            {"delivery": "whole"},
            {"logit_bias": {17: 4.0}},
        ):
            expected = [delta async for delta in own.complete(request(**given))]
            found = await on.deltas(**given)
            ids, logprobs, reason, versions = together(expected)
            assert together(found)[0] == ids
            assert np.allclose(together(found)[1], logprobs, atol=1e-4)
            assert (together(found)[2], together(found)[3]) == (reason, versions)
            if given.get("top_logprobs"):
                best, rightly = (
                    [pair for delta in deltas for one in delta.top_logprobs for pair in one]
                    for deltas in (found, expected)
                )
                assert [token for token, _ in best] == [token for token, _ in rightly]
                assert [value for _, value in best] == pytest.approx([value for _, value in rightly], abs=1e-4)
        assert on.pool.sampled_tokens > 40


async def test_the_wait_for_a_server_ends_when_it_is_cancelled_and_leaves_nothing(base, tmp_path):
    waiting, ended = threading.Event(), threading.Event()
    place = {"sampler_url": ["http://127.0.0.1:9"], "sampler_wait": 60.0}

    def wait():
        try:
            with stage(base, tmp_path, servers=0, note=lambda _: waiting.set(), **place):
                pass
        finally:
            ended.set()

    task = asyncio.create_task(in_cancellable_thread(wait))
    assert await asyncio.to_thread(waiting.wait, 20)
    task.cancel()
    assert await asyncio.to_thread(ended.wait, 20)
    assert not list((tmp_path / "weights").iterdir())


async def test_new_weights_are_sampled_by_requests_that_begin_later_and_old_ones_go_when_nothing_uses_them(
    base, tmp_path
):
    with stage(base, tmp_path, servers=2) as on:
        await on.publish()
        before, *_ = together(await on.deltas())
        under_way = on.pool.complete(request(tokens=400, affinity="r"))
        first = await anext(under_way)
        step(on.policy)
        await on.publish()
        after, _, _, versions = together(await on.deltas())
        assert versions == {1}
        assert after != before
        names = [asked.model for asked in on.servers[0].asked + on.servers[1].asked]
        (old,) = {name for name in names if name.startswith("default@v0")}
        assert any(old in server.loaded for server in on.servers)
        rest = [delta async for delta in under_way]
        assert {first.version} == {0} == {delta.version for delta in rest}
        await until(lambda: not any(old in server.loaded for server in on.servers))
        await until(lambda: len(list((tmp_path / "weights").glob("*/default@v*"))) == 1)
        assert len({asked.salt for asked in on.servers[0].asked}) == 3  # the base, and one for each version


async def test_an_answer_goes_on_elsewhere_from_its_tokens_and_the_lost_server_comes_back_with_the_newest_weights(
    base, tmp_path
):
    with stage(base, tmp_path, servers=2) as on:
        await on.publish()
        await on.deltas(affinity="r", tokens=2)
        first = next(server for server in on.servers if any(asked.seed == 3 for asked in server.asked))
        other = next(server for server in on.servers if server is not first)
        first.faults.break_after = 5
        answer = asyncio.create_task(on.deltas(affinity="r", tokens=20))
        ids, logprobs, reason, versions = together(await answer)
        assert (len(ids), len(logprobs), reason, versions) == (20, 20, "length", {0})
        went_on = other.asked[-1]
        assert went_on.prompt == [*PROMPT, *ids[:5]]
        first.faults.break_after = None
        first.kill()
        step(on.policy)
        await on.publish()
        newest = other.ever_loaded[-1]
        assert newest not in first.ever_loaded
        first.start()
        await until(lambda: all(replica.well for replica in on.pool.replicas))
        assert first.ever_loaded[-1] == newest
        assert on.policy.version == 1
        got = {(await on.deltas(affinity=f"r{index}"))[-1].version for index in range(4)}
        assert got == {1}


async def test_a_server_that_restarts_between_two_looks_is_brought_up_before_it_is_asked_again(base, tmp_path):
    with stage(base, tmp_path) as on:
        await on.publish()
        expected = together(await on.deltas())
        (server,) = on.servers
        server.slots += server.loaded.values()
        server.loaded.clear()
        assert together(await on.deltas())[0] == expected[0]
        assert len(server.ever_loaded) == 2


async def test_a_server_that_hangs_is_left_for_another(base, tmp_path):
    with stage(base, tmp_path, servers=2, sampler_silence=1.0) as on:
        await on.publish()
        await on.deltas(affinity="r", tokens=2)
        first = next(server for server in on.servers if any(asked.seed == 3 for asked in server.asked))
        first.faults.hang_after = 4
        ids, *_ = together(await on.deltas(affinity="r", tokens=10))
        assert len(ids) == 10


async def test_a_client_that_leaves_ends_its_request_at_the_server(base, tmp_path):
    with stage(base, tmp_path) as on:
        await on.publish()
        stream = on.pool.complete(request(tokens=400))
        await anext(stream)
        await stream.aclose()
        await until(lambda: on.servers[0].asked[-1].cut)
        await until(lambda: not on.pool.load().sequences["running"])


async def test_rollouts_stay_where_they_are_and_new_ones_go_to_the_least_busy_server(base, tmp_path):
    with stage(base, tmp_path, servers=2) as on:
        await on.publish()
        await asyncio.gather(*(on.deltas(affinity=f"r{index}", seed=100 + index) for index in range(6)))
        for index in range(6):
            await on.deltas(affinity=f"r{index}", seed=100 + index)
        places = [{asked.seed for asked in server.asked if asked.seed is not None} for server in on.servers]
        assert places[0] & places[1] == set()
        assert {len(place) for place in places} == {3}


@pytest.mark.parametrize(
    ("faults", "said"),
    [({"ignores_adapters": True}, "bare model"), ({"stale_cache": True}, "prefix cache|other weights")],
)
async def test_a_server_that_does_not_sample_what_is_learnt_stops_the_run(base, tmp_path, faults, said):
    with stage(base, tmp_path) as on:
        step(on.policy)
        await on.publish()
        for name, value in faults.items():
            setattr(on.servers[0].faults, name, value)
        step(on.policy)
        with pytest.raises(ParityError, match=said):
            await on.publish()


@pytest.mark.parametrize(
    ("faults", "said"),
    [
        ({"raw_logprobs": True}, "--logprobs-mode processed_logprobs"),
        ({"no_token_ids": True}, "returns no token ids"),
        ({"max_model_len": 48}, "--max-model-len"),
    ],
)
def test_a_server_that_cannot_be_sampled_from_is_refused_in_one_line(base, tmp_path, faults, said):
    with pytest.raises(UserError, match=said) as caught, stage(base, tmp_path, faults=faults):
        pass
    assert "\n" not in str(caught.value)


def test_a_server_with_another_base_model_is_refused(base, tmp_path):
    with pytest.raises(UserError, match="another base model"), stage(base, tmp_path, learner=tiny_model(seed=7)):
        pass


def test_an_address_that_nobody_answers_at_is_refused(base, tmp_path):
    notes = []
    error = r"sampler_wait: no sampler answers at http://127\.0\.0\.1:9.*`sampler_url`"
    given = {"sampler_url": ["http://127.0.0.1:9"], "sampler_wait": 0.2}
    with pytest.raises(UserError, match=error), stage(base, tmp_path, servers=0, note=notes.append, **given):
        pass
    (waiting,) = notes
    assert waiting.startswith("waiting for the sampler http://127.0.0.1:9, 0 s at most (`sampler_wait`): ")


def test_a_server_that_is_not_up_yet_is_waited_for(base, tmp_path):
    notes = []

    def note(text):
        notes.append(text)
        server.faults.ill = False

    (server,) = fresh_servers(base, 1)
    server.faults.ill = True
    with stage(base, tmp_path, servers=0, note=note, sampler_url=[server.url], sampler_wait=300.0):
        (waiting,) = notes
        assert f"waiting for the sampler {server.url}" in waiting


@pytest.mark.parametrize(
    ("faults", "said"), [({"no_lora": True}, "--enable-lora"), ({"max_rank": 2}, "--max-lora-rank 8")]
)
async def test_a_server_that_takes_no_adapters_is_refused_before_the_first_rollout(base, tmp_path, faults, said):
    with stage(base, tmp_path, faults=faults) as on, pytest.raises(UserError, match=said):
        await on.publish()


def test_servers_are_refused_for_a_model_that_is_trained_in_full(base, tmp_path):
    with pytest.raises(UserError, match="sampler=own"), stage(base, tmp_path, servers=0, lora=None):
        pass


async def test_an_answer_of_a_given_form_is_refused(base, tmp_path):
    with stage(base, tmp_path) as on:
        await on.publish()
        with pytest.raises(BadRequestError, match="--sampler own"):
            [delta async for delta in on.pool.complete(TokenRequest(PROMPT, constraint=lambda: None))]


@pytest.mark.parametrize(
    "given",
    [
        {"sampler_url": ["http://a:1"]},
        {"sampler": "sglang"},
        {"sampler": "vllm", "sampler_url": ["http://gpu1:8000", "localhost:8000"]},
    ],
)
def test_settings_that_do_not_go_together_are_refused(given):
    with pytest.raises(ValueError, match="sampler_url"):
        SamplerSettings(**given)
