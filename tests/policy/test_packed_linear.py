"""Copies of the weights that sample faster leave no trace in the weights, and follow every change of the adapter."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from peft.tuners.lora.layer import Linear as LoraLinear
from torch import nn

from helpers import sample_all, tiny_policy
from mini_agentic_rl.policy import LoraSettings
from mini_agentic_rl.policy.load import load_model
from mini_agentic_rl.policy.sampling_layers import PackedLinears
from mini_agentic_rl.tokens import SamplingParams
from tiny import tiny_model

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


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 0.05)])
def test_they_give_what_the_weights_themselves_give(dtype, tolerance, monkeypatch):
    prompts, params = [[1, 2, 3], [4, 5]], [SamplingParams(max_tokens=8, seed=seed) for seed in range(2)]
    with tiny_policy(dtype=dtype) as policy:
        packed = sample_all(policy, prompts, params)
        policy.run(lambda: None)
        monkeypatch.setattr(policy.model._packed, "pack", lambda adapter: None)
        policy.run(policy.engine.cache.drop_idle)
        plain = sample_all(policy, prompts, params)
    for one, other in zip(packed, plain, strict=True):
        # Rounding may tip a draw; what follows is then another text.
        same = np.cumprod(one.output_ids == other.output_ids).astype(bool)
        assert same.all() or (dtype == torch.bfloat16 and same.any())
        assert np.abs(one.logprobs - other.logprobs)[same].max() < tolerance


def test_in_half_precision_an_adapter_too_small_for_the_weights_is_not_lost():
    model = load_model(tiny_model(), lora=LoraSettings())
    model.base.to(torch.bfloat16)
    layer = next(module for module in model.base.modules() if type(module) is LoraLinear)
    with torch.no_grad():
        signs_K = torch.tensor([1.0, -1.0]).repeat(layer.in_features // 2)
        layer.base_layer.weight.copy_(signs_K.expand_as(layer.base_layer.weight))
        layer.lora_A["default"].weight.fill_(1.0)
        layer.lora_B["default"].weight.fill_(1e-4)
        x = torch.ones(3, layer.in_features, dtype=torch.bfloat16)  # the weights give 0
        beside = layer(x)
        model.activate_for_sampling("default", at_once=True)
        packed = layer(x)
    assert float(packed.min()) > 0
    torch.testing.assert_close(packed, beside)


class _Attention(nn.Module):
    """Layers with the names of an attention's, and inputs that may differ."""

    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj = nn.Linear(8, 6), nn.Linear(8, 4, bias=False), nn.Linear(8, 4)

    def forward(self, x, of_v):
        return self.q_proj(x), self.k_proj(x), self.v_proj(of_v)


@pytest.mark.parametrize("targets", [["q_proj", "k_proj", "v_proj"], ["v_proj"], ["q_proj", "v_proj"]])
@pytest.mark.parametrize("together", [True, False])
def test_layers_with_the_same_input_give_what_each_gives_alone(targets, together):
    torch.manual_seed(0)
    config = LoraConfig(r=3, lora_alpha=6, rank_pattern={"v_proj": 2}, target_modules=targets)
    model = get_peft_model(_Attention(), config)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter)
    x = torch.randn(2, 5, 8)
    of_v = x if together else torch.randn(2, 5, 8)
    packed = PackedLinears(model)
    with torch.no_grad():
        expected = model(x, of_v)
        packed.pack("default")
        found = model(x, of_v)
    for one, other in zip(found, expected, strict=True):
        assert one.is_contiguous()
        torch.testing.assert_close(one, other)
