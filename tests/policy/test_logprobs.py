"""The frozen head gives the log-probabilities, entropies and gradients of the plain one."""

from __future__ import annotations

import pytest
import torch

from mini_agentic_rl.policy import frozen_head


@pytest.mark.parametrize("block", [7, 16, 1000])
@pytest.mark.parametrize("sharpness", [1.0, 30.0])
def test_it_equals_a_softmax_over_all_logits(monkeypatch, block, sharpness):
    monkeypatch.setattr(frozen_head, "VOCAB_BLOCK", block)
    torch.manual_seed(0)
    hidden = (torch.randn(6, 12) * sharpness).requires_grad_()
    weight, scale = torch.randn(50, 12), torch.rand(6) + 0.5
    rows, tokens = torch.tensor([0, 0, 1, 3, 3, 3, 5]), torch.tensor([3, 49, 7, 0, 0, 21, 14])
    weights = torch.randn(7)
    logits = (hidden @ weight.T).double() * scale[:, None]
    everything = logits.log_softmax(-1)
    expected = everything[rows, tokens]
    (weights * expected).sum().backward()
    gradient, hidden.grad = hidden.grad.clone(), None
    entropy = -(everything.exp() * everything).sum(-1)[rows]
    logprobs, found_entropy = frozen_head.frozen_head_logprobs(hidden, weight, scale, rows, tokens)
    (weights * logprobs).sum().backward()
    torch.testing.assert_close(logprobs.double(), expected, atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(found_entropy.double(), entropy, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(hidden.grad, gradient, atol=1e-5, rtol=1e-4)
    assert not found_entropy.requires_grad


def test_the_gradient_of_a_nearly_certain_token_survives_16_bits():
    """W_t minus the mean of all W is then a small difference of large numbers."""
    torch.manual_seed(0)
    weight = torch.randn(40, 16)
    hidden = weight[5:6] * 0.9
    exact = hidden.double().requires_grad_()
    (exact @ weight.double().T).log_softmax(-1)[0, 5].backward()
    rounded = hidden.bfloat16().requires_grad_()
    row, token = torch.tensor([0]), torch.tensor([5])
    logprob, _ = frozen_head.frozen_head_logprobs(rounded, weight.bfloat16(), torch.ones(1), row, token)
    logprob.sum().backward()
    assert 0 < float(exact.grad.norm()) < 0.1
    assert float((rounded.grad.double() - exact.grad).norm() / exact.grad.norm()) < 0.1
