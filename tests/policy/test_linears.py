"""Linear layers that compute faster, fused LoRA and packed copies, give what the layers themselves give."""

from __future__ import annotations

import pytest
import torch
from peft import LoraConfig, get_peft_model
from peft.tuners.lora.layer import Linear as LoraLinear
from torch import nn

from helpers import sample_all, tiny_policy
from mini_agentic_rl.policy import LoraSettings, kernels, load_model
from mini_agentic_rl.policy.fused_layers import _add, _LoraLinear, fuse_lora
from mini_agentic_rl.policy.sampling_layers import PackedLinears
from mini_agentic_rl.tokens import SamplingParams
from tiny import tiny_model


class _Block(nn.Module):
    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 10, bias=bias), nn.Linear(10, 4, bias=bias)

    def forward(self, x):
        return self.second(torch.tanh(self.first(x)))


def _block(*, bias: bool = True, **options):
    torch.manual_seed(0)
    model = get_peft_model(_Block(bias), LoraConfig(r=3, lora_alpha=6, target_modules=["first", "second"], **options))
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter)
    return model


def _results(model, x):
    x = x.clone().requires_grad_()
    y = model(x)
    y.square().sum().backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return y.detach(), x.grad, gradients


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(5, 6), (2, 5, 6)])
def test_results_and_gradients_are_pefts(bias, shape):
    model, x = _block(bias=bias), torch.randn(shape)
    y, grad_x, gradients = _results(model, x)
    fuse_lora(model)
    fused_y, fused_grad_x, fused = _results(model, x)
    torch.testing.assert_close(fused_y, y)
    torch.testing.assert_close(fused_grad_x, grad_x)
    assert fused.keys() == gradients.keys()
    assert len(fused) == 4
    for name, gradient in gradients.items():
        # Another order of the same sums: how they round is the processor's.
        torch.testing.assert_close(fused[name], gradient, rtol=1e-5, atol=1e-4)
    with torch.no_grad():
        torch.testing.assert_close(model(x), y)


@pytest.mark.parametrize("options", [{"use_dora": True}, {"lora_dropout": 0.5}, {"lora_bias": True}])
def test_what_is_more_than_plain_is_left_to_peft(options):
    model, x = _block(**options), torch.randn(5, 6)
    torch.manual_seed(1)
    y, _, gradients = _results(model, x)
    fuse_lora(model)
    torch.manual_seed(1)
    fused_y, _, fused = _results(model, x)
    torch.testing.assert_close(fused_y, y)
    assert fused.keys() == gradients.keys()


@pytest.mark.skipif(
    not kernels.usable(torch.bfloat16, torch.device("cpu")),
    reason="no AVX512-BF16 or g++: the compiled products are not checked",
)
@pytest.mark.parametrize(("rank", "bias", "frozen_input"), [(8, False, False), (3, True, False), (17, False, True)])
def test_in_c_plus_plus_results_and_gradients_are_as_exact_as_torchs(rank, bias, frozen_input, monkeypatch):
    tokens, inputs, outputs = 7, 64, 96
    torch.manual_seed(0)
    x, weight = torch.randn(1, tokens, inputs).bfloat16(), (torch.randn(outputs, inputs) / 8).bfloat16()
    a, b = torch.randn(rank, inputs) / 8, torch.randn(outputs, rank)
    of_bias = torch.randn(outputs).bfloat16() if bias else None

    def results(wide: bool) -> list[torch.Tensor]:
        given = [tensor.double() if wide else tensor.clone() for tensor in (x, weight, a, b)]
        for tensor in given[2:] if frozen_input else (given[0], *given[2:]):
            tensor.requires_grad_()
        bias_N = of_bias.double() if wide and of_bias is not None else of_bias
        y = _LoraLinear.apply(given[0], given[1], bias_N, given[2], given[3], 1.5)
        y.backward(torch.sin(torch.arange(y.numel(), dtype=torch.float64)).view(y.shape).to(y.dtype))
        return [y.detach(), *(tensor.grad for tensor in given if tensor.grad is not None)]

    assert kernels.can_adapt(x, a, b)
    # What a pass without gradients gives has the same bits: a ratio of both is 1.
    y, plain = (torch.nn.functional.linear(x[0], weight, of_bias) for _ in range(2))
    _add(x[0], a, b, 1.5, y)
    assert not torch.equal(y, plain)
    found, exact = results(False), results(True)
    assert torch.equal(y, found[0][0])
    monkeypatch.setattr(kernels, "can_adapt", lambda *_: False)
    rounded = results(False)
    assert len(found) == len(exact) == (3 if frozen_input else 4)
    for one, other, true in zip(found, rounded, exact, strict=True):
        errors = [float((part.double() - true).norm() / true.norm()) for part in (one, other)]
        assert errors[0] < 1.1 * errors[1] + 1e-4


GREEDY = [SamplingParams(temperature=0, max_tokens=6)]


def _weights(policy):
    return {name: p.detach().clone() for name, p in policy.model.base.named_parameters()}


@pytest.mark.parametrize("lora", [LoraSettings(), None])
def test_the_weights_are_untouched_by_sampling(lora):
    with tiny_policy(lora=lora) as policy:
        before = policy.run(lambda: _weights(policy))
        sample_all(policy, [[1, 2, 3]], GREEDY)
        used = bool(policy.model._packed._packs)
        after = policy.run(lambda: _weights(policy))
        let_go = not policy.model._packed._packs
    assert used
    assert let_go  # by the job that read the weights, as by one that changes them
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_an_adapter_read_back_from_disk_is_sampled_from(tmp_path):
    with tiny_policy() as policy:
        (first,) = sample_all(policy, [[1, 2, 3]], GREEDY)
        policy.save(tmp_path)

        def zero():
            for parameter in policy.model.trainable():
                parameter.data.zero_()
            policy.engine.weights_changed("default")

        policy.run(zero)
        (base,) = sample_all(policy, [[1, 2, 3]], GREEDY)
        policy.load_weights(tmp_path)
        (again,) = sample_all(policy, [[1, 2, 3]], GREEDY)
    assert abs(base.logprobs[0] - first.logprobs[0]) > 1e-4
    assert again.output_ids.tolist() == first.output_ids.tolist()
    assert abs(again.logprobs - first.logprobs).max() < 1e-5


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
