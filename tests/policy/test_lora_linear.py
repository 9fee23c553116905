"""The fused LoRA layer computes what peft's own does, forward and backward."""

from __future__ import annotations

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn

from mini_agentic_rl.policy import kernels
from mini_agentic_rl.policy.fused_layers import _add, _LoraLinear, fuse_lora


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


def test_a_frozen_input_and_an_adapter_that_is_off_are_as_before():
    model, x = _block(), torch.randn(5, 6)
    with model.disable_adapter():
        expected = model(x)
    fuse_lora(model)
    with model.disable_adapter():
        torch.testing.assert_close(model(x), expected)
    model(x).sum().backward()
    assert all(p.grad is not None for name, p in model.named_parameters() if "lora_" in name)


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
    not kernels.usable(torch.bfloat16, torch.device("cpu")), reason="this machine lacks AVX512-BF16 or g++"
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
