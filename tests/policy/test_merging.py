"""An adapter merged for sampling leaves no trace in the weights, and follows every change of the adapter."""

from __future__ import annotations

import torch

from helpers import sample_all, tiny_policy
from mini_agentic_rl.tokens import SamplingParams

PARAMS = [SamplingParams(temperature=0, max_tokens=6)]


def _weights(policy):
    return {name: p.detach().clone() for name, p in policy.model.base.named_parameters()}


def test_the_weights_are_untouched_by_sampling():
    with tiny_policy() as policy:
        before = policy.run(lambda: _weights(policy))
        sample_all(policy, [[1, 2, 3]], PARAMS)
        merged = any(module.merged for module in policy.model.base.modules() if hasattr(module, "merged_adapters"))
        after = policy.run(lambda: _weights(policy))
    assert merged  # it was in use until the job that read the weights
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


def test_half_precision_is_not_merged():
    with tiny_policy() as policy:
        policy.run(lambda: policy.model.base.to(torch.bfloat16))
        assert not policy.model._merged.possible()
