"""Copies of the weights that sample faster leave no trace in the weights, and follow every change of the adapter."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from helpers import sample_all, tiny_policy
from mini_agentic_rl.policy import LoraSettings
from mini_agentic_rl.tokens import SamplingParams

PARAMS = [SamplingParams(temperature=0, max_tokens=6)]


def _weights(policy):
    return {name: p.detach().clone() for name, p in policy.model.base.named_parameters()}


@pytest.mark.parametrize("lora", [LoraSettings(), None])
def test_the_weights_are_untouched_by_sampling(lora):
    with tiny_policy(lora=lora) as policy:
        before = policy.run(lambda: _weights(policy))
        sample_all(policy, [[1, 2, 3]], PARAMS)
        used = policy.model._packed.used
        after = policy.run(lambda: _weights(policy))
        let_go = not policy.model._packed.used
    assert used
    assert let_go  # by the job that read the weights, as by one that changes them
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_an_adapter_read_back_from_disk_is_sampled_from(tmp_path):
    with tiny_policy() as policy:
        (first,) = sample_all(policy, [[1, 2, 3]], PARAMS)
        policy.save(tmp_path)

        def zero():
            for parameter in policy.model.trainable():
                parameter.data.zero_()
            policy.engine.weights_changed("default")

        policy.run(zero)
        (base,) = sample_all(policy, [[1, 2, 3]], PARAMS)
        policy.load_weights(tmp_path)
        (again,) = sample_all(policy, [[1, 2, 3]], PARAMS)
    assert abs(base.logprobs[0] - first.logprobs[0]) > 1e-4
    assert again.output_ids.tolist() == first.output_ids.tolist()
    assert abs(again.logprobs - first.logprobs).max() < 1e-5


def test_they_give_what_the_weights_themselves_give(monkeypatch):
    prompts, params = [[1, 2, 3], [4, 5]], [SamplingParams(max_tokens=8, seed=seed) for seed in range(2)]
    with tiny_policy() as policy:
        packed = sample_all(policy, prompts, params)
        policy.run(lambda: None)
        monkeypatch.setattr(policy.model._packed, "pack", lambda adapter: None)
        policy.run(policy.engine.cache.drop_idle)
        plain = sample_all(policy, prompts, params)
    for one, other in zip(packed, plain, strict=True):
        assert one.output_ids.tolist() == other.output_ids.tolist()
        assert np.abs(one.logprobs - other.logprobs).max() < 1e-5


def test_half_precision_is_sampled_with_the_weights_themselves():
    with tiny_policy() as policy:
        policy.run(lambda: policy.model.base.to(torch.bfloat16))
        policy.run(lambda: policy.model._packed.pack("default"))
        assert not policy.model._packed.used
