"""Invariant 3: on-policy, the log-probabilities that the engine recorded are those of the learner."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from helpers import group_of_conversations, pack_rollouts, sample_all, tiny_policy
from mini_agentic_rl.policy import EngineSettings, LearnerSettings, kernels
from mini_agentic_rl.tokens import SamplingParams


def _difference(policy, records):
    packed = pack_rollouts([[record] for record in records])
    learner = policy.run(lambda: policy.learner(LearnerSettings()))
    learned = policy.run(lambda: learner.logprobs(packed)).numpy()
    return np.abs(learned - packed.behaviour_logprobs_S).max()


@pytest.mark.parametrize(
    "engine",
    [
        EngineSettings(block_size=4, cache_mib=1, max_batch_tokens=48),
        EngineSettings(block_size=16, cache_mib=1, max_batch_tokens=9),
        EngineSettings(block_size=4, cache_mib=1, deterministic=True),
    ],
)
def test_recorded_log_probabilities_are_the_learners(engine):
    with tiny_policy(engine=engine) as policy:
        conversations = group_of_conversations(policy, rollouts=6)
        assert _difference(policy, [record for records in conversations for record in records]) < 1e-4


@pytest.mark.parametrize("compiled", [True, False])
def test_in_16_bits_they_are_the_learners_to_its_rounding(compiled, monkeypatch):
    """Heads of this size are attended to in C++ where it can be compiled; sampler and learner have kernels of their
    own there, as they have in torch."""
    if not compiled:
        monkeypatch.setattr(kernels, "usable", lambda *_: False)
    with tiny_policy(dtype=torch.bfloat16, head_size=32, width=96) as policy:
        conversations = group_of_conversations(policy, rollouts=6)
        assert _difference(policy, [record for records in conversations for record in records]) < 0.08


def test_in_float32_with_compiled_kernels_they_are_the_learners():
    """Heads of this size are computed in C++ where it can be compiled."""
    with tiny_policy(head_size=32, width=96) as policy:
        conversations = group_of_conversations(policy, rollouts=6)
        assert _difference(policy, [record for records in conversations for record in records]) < 1e-4


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
def test_they_are_taken_after_temperature(temperature):
    prompts = [[1, 2, 3, 4, 5]] * 4
    params = [SamplingParams(temperature=temperature, max_tokens=8, seed=i) for i in range(4)]
    with tiny_policy() as policy:
        assert _difference(policy, sample_all(policy, prompts, params)) < 1e-4


def test_they_are_taken_before_truncation():
    params = [SamplingParams(top_k=3, top_p=0.8, max_tokens=8, seed=i) for i in range(4)]
    with tiny_policy() as policy:
        assert _difference(policy, sample_all(policy, [[9, 8, 7]] * 4, params)) < 1e-4


def test_they_survive_preemption():
    engine = EngineSettings(block_size=4, cache_mib=1, max_batch_tokens=64)
    with tiny_policy(engine=engine) as policy:
        tight = policy.engine.cache
        tight._free = tight._free[:14]  # blocks for one and a half of these sequences
        records = sample_all(
            policy, [[i + 1] * 9 for i in range(4)], [SamplingParams(max_tokens=24, seed=i) for i in range(4)]
        )
        assert [record.output_ids.size for record in records] == [24] * 4
        assert _difference(policy, records) < 1e-4


@pytest.mark.parametrize("length", [9, 12])  # ends inside a block, and with one
def test_samples_that_begin_alike_are_computed_once_and_come_out_as_if_alone(length):
    """At a low temperature many samples share a history; the tokens that differ only in their seed cost nothing."""
    prompts = [[7] * length] * 6
    params = [SamplingParams(temperature=0.15, max_tokens=20, seed=i) for i in range(6)]
    engine = EngineSettings(block_size=4, cache_mib=1, max_batch_tokens=48, max_draft_tokens=0)
    with tiny_policy(engine=engine) as policy:
        together = sample_all(policy, prompts, params)
        computed = policy.engine.counters.computed_tokens
        policy.run(policy.engine.cache.drop_idle)
        alone = [sample_all(policy, [prompt], [sampling])[0] for prompt, sampling in zip(prompts, params, strict=True)]
        for one, other in zip(together, alone, strict=True):
            assert one.output_ids.tolist() == other.output_ids.tolist()
            assert np.abs(one.logprobs - other.logprobs).max() < 1e-5
        assert _difference(policy, together) < 1e-4
    histories = {tuple(record.output_ids[:n]) for record in together for n in range(1, 20)}
    assert 20 < len(histories) < 6 * 19  # some shared, some not
    assert computed == length + len(histories)
