"""Corrections, penalties and bonuses equal references written as loops, in their values and gradients."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from mini_agentic_rl.algorithm.losses import importance_correction, sum_to_go, term_weights
from mini_agentic_rl.algorithm.policy_gradient import PolicyGradientLoss
from mini_agentic_rl.policy import LossInputs

LENGTHS = [5, 1, 9, 3]
TRAJECTORY = np.repeat(np.arange(4), LENGTHS)
ADVANTAGES = [1.2, -0.7, 0.3, -0.8]


def _logprobs(spread=0.4):
    """log pi (a leaf), log pi_old of the learner, and log pi of the sampler, for all terms."""
    rng = np.random.default_rng(3)
    old = rng.normal(-2, 1, TRAJECTORY.size)
    current = torch.tensor(old + rng.normal(0, spread, old.size), requires_grad=True)
    return current, old, old + rng.normal(0, 0.5, old.size)


def _terms(index):
    """Places of a trajectory's terms."""
    return np.flatnonzero(index == TRAJECTORY)


def _ours(loss, current, behaviour, aggregation="sequence", entropy=None, **inputs):
    inputs = {
        "weights_S": term_weights(LENGTHS, aggregation, 20).astype(np.float64)[TRAJECTORY],
        "advantages_S": np.array(ADVANTAGES)[TRAJECTORY],
        "logprobs_S": current,
        "behaviour_logprobs_S": behaviour,
        "entropy_S": np.zeros(TRAJECTORY.size) if entropy is None else entropy,
        **inputs,
    }
    out = loss(LossInputs(**{name: torch.as_tensor(values) for name, values in inputs.items()}))
    return out, _gradient(out.loss, current)


def _gradient(loss, leaf):
    (found,) = torch.autograd.grad(loss, leaf, retain_graph=True)
    return found.numpy()


def _same(ours, reference, current):
    out, gradient = ours
    assert float(out.loss.detach()) == pytest.approx(float(reference.detach()), rel=1e-5)
    np.testing.assert_allclose(gradient, _gradient(reference, current), rtol=1e-5, atol=1e-12)
    assert np.abs(gradient).max() > 0


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_truncated_importance_correction_weighs_the_ratio_to_the_learners_own_numbers(level):
    current, old, behaviour = _logprobs()
    cap = 1.4
    correction = importance_correction(level, old, behaviour, TRAJECTORY, cap)
    ours = _ours(
        PolicyGradientLoss(0.2, 0.28), current, behaviour, "token", old_logprobs_S=old, correction_S=correction
    )
    total, capped = torch.zeros((), dtype=torch.float64), 0
    for term, index in enumerate(TRAJECTORY):
        where = [term] if level == "token" else _terms(index)
        mismatch = math.exp(sum(old[other] - behaviour[other] for other in where))
        capped += mismatch > cap
        ratio = torch.exp(current[term] - old[term])
        clipped = torch.clamp(ratio, 0.8, 1.28)
        total = total + min(mismatch, cap) * torch.minimum(ratio * ADVANTAGES[index], clipped * ADVANTAGES[index])
    assert 0 < capped < TRAJECTORY.size
    _same(ours, -total / TRAJECTORY.size, current)


def test_a_ratio_that_is_no_number_is_masked():
    far = importance_correction("icepop", np.array([800.0, -800.0, 0.0]), np.zeros(3), np.arange(3), 5.0, 0.5)
    assert far.tolist() == [0.0, 0.0, 1.0]


def test_the_entropy_bonus_is_the_weighted_mean_of_the_entropies():
    current, old, _ = _logprobs()
    entropy = torch.rand(TRAJECTORY.size, dtype=torch.float64, requires_grad=True)
    out, _ = _ours(PolicyGradientLoss(entropy_coef=0.3), current, old, entropy=entropy)
    plain, _ = _ours(PolicyGradientLoss(), current, old, entropy=entropy.detach())
    mean = sum(sum(entropy[term] for term in _terms(index)) / LENGTHS[index] for index in range(4)) / 4
    assert float(out.loss.detach()) == pytest.approx(float((plain.loss - 0.3 * mean).detach()), rel=1e-5)
    np.testing.assert_allclose(_gradient(out.loss, entropy), _gradient(-0.3 * mean, entropy), rtol=1e-5)


def test_the_return_of_a_token_is_less_by_the_penalty_of_all_tokens_to_come():
    rng = np.random.default_rng(0)
    order = rng.permutation(TRAJECTORY.size)  # trajectories may be interleaved, each in its own order
    trajectory, values = TRAJECTORY[order], rng.normal(size=TRAJECTORY.size)
    expected = [
        sum(values[later] for later in range(term, trajectory.size) if trajectory[later] == trajectory[term])
        for term in range(trajectory.size)
    ]
    np.testing.assert_allclose(sum_to_go(values, trajectory), expected)


@pytest.mark.parametrize(
    ("place", "estimator", "expected"),
    [("loss", "k1", "nothing"), ("loss", "k2", "reverse"), ("loss", "k3", "forward"), ("reward", "k1", "reverse")],
)
def test_each_kl_penalty_has_the_gradient_that_is_told_of_it(place, estimator, expected):
    """Exactly, by summing over all tokens of a small vocabulary instead of sampling them."""
    torch.manual_seed(0)
    logits = torch.randn(6, dtype=torch.float64, requires_grad=True)
    policy, reference = logits.log_softmax(-1), torch.randn(6, dtype=torch.float64).log_softmax(-1)
    inputs = LossInputs(
        policy.detach().exp(),
        torch.zeros(6, dtype=torch.float64),
        logprobs_S=policy,
        behaviour_logprobs_S=policy.detach(),
        entropy_S=torch.zeros(6),
    )
    loss = PolicyGradientLoss()
    if place == "loss":
        loss = PolicyGradientLoss(kl_coef=1.0, kl_estimator=estimator)
        inputs = replace(inputs, reference_logprobs_S=reference)
    else:
        inputs = replace(inputs, advantages_S=-(policy - reference).detach())
    found = _gradient(loss(inputs).loss, logits)
    divergence = {
        "nothing": 0 * logits.sum(),
        "reverse": (policy.exp() * (policy - reference)).sum(),
        "forward": (reference.exp() * (reference - policy)).sum(),
    }[expected]
    np.testing.assert_allclose(found, _gradient(divergence, logits), atol=1e-12)


def test_a_sequence_ratio_without_its_input_is_an_error():
    current, old, _ = _logprobs()
    with pytest.raises(ValueError, match="rollout_S"):
        _ours(PolicyGradientLoss(policy_loss="gspo"), current, old)
