"""Sampling and learning take turns: their memory is never held together, and nothing under way is lost."""

from __future__ import annotations

import threading

import pytest
import torch

from helpers import sample_all, tiny_policy
from mini_agentic_rl.policy import EngineSettings, QueueFullError
from mini_agentic_rl.tokens import SamplingParams, TokenRequest


def test_while_learning_no_key_is_held_and_sequences_under_way_go_on_as_if_nothing_had_been():
    params = [SamplingParams(max_tokens=40, seed=seed) for seed in range(3)]
    prompts = [[1, 2, 3, 4, 5, seed] for seed in range(3)]
    with tiny_policy() as policy:
        unbroken = sample_all(policy, prompts, params)
        held_before, held_while, started = [], [], threading.Event()
        counters = policy.engine.counters

        def learn_often():
            started.wait(10)
            for _ in range(5):
                before = counters.sampled_tokens
                policy.run(lambda: held_before.append(policy.engine._pool.allocated))
                policy.learn(lambda: held_while.append(policy.engine._pool.allocated))
                while counters.sampled_tokens < before + 5 and policy.engine.pending():
                    pass

        learner = threading.Thread(target=learn_often)
        learner.start()
        started.set()
        broken = sample_all(policy, prompts, params)
        learner.join()
    assert any(held_before)
    assert held_while == [False] * 5
    for one, other in zip(broken, unbroken, strict=True):
        assert one.output_ids.tolist() == other.output_ids.tolist()
        torch.testing.assert_close(torch.tensor(one.logprobs), torch.tensor(other.logprobs), atol=1e-5, rtol=0)


def test_free_pages_go_back_between_sampling_and_learning_and_seldom_from_update_to_update(monkeypatch):
    released = []
    for module in ("policy", "kv_cache"):
        monkeypatch.setattr(
            f"mini_agentic_rl.policy.{module}.release_free_memory", lambda of=module: released.append(of)
        )
    with tiny_policy() as policy:
        for _ in range(2):
            sample_all(policy, [[1, 2, 3]], [SamplingParams(max_tokens=2)])
            for _ in range(20):
                policy.learn(lambda: None)
    assert released == ["kv_cache", "policy", "policy"] * 2


def _with_a_full_queue(policy, do):
    """Call `do` while the torch thread is busy and two requests wait."""
    busy, go_on = threading.Event(), threading.Event()

    def hold():
        busy.set()
        go_on.wait(20)

    holder = threading.Thread(target=lambda: policy.run(hold))
    holder.start()
    busy.wait(10)
    try:
        done = [threading.Event() for _ in range(2)]
        for event in done:
            policy.engine.submit(
                TokenRequest((1, 2), SamplingParams(max_tokens=2)),
                lambda delta, event=event: event.set() if delta.finish_reason else None,
            )
        do()
    finally:
        go_on.set()
        holder.join()
    assert all(event.wait(10) for event in done)


def test_a_request_beyond_those_that_may_wait_is_refused_and_the_others_are_served():
    with tiny_policy(engine=EngineSettings(block_size=4, cache_mib=1, max_waiting=2)) as policy:

        def refused():
            with pytest.raises(QueueFullError, match="max_waiting"):
                policy.engine.submit(TokenRequest((1, 2), SamplingParams(max_tokens=2)), lambda delta: None)

        _with_a_full_queue(policy, refused)
        assert sample_all(policy, [[1, 2]], [SamplingParams(max_tokens=2)])[0].output_ids.size == 2
