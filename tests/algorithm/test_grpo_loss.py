"""The GRPO loss against a reference written as loops, and the weights that hold its normalisation."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from mini_agentic_rl.algorithm.losses import term_weights
from mini_agentic_rl.algorithm.policy_gradient import PolicyGradientLoss
from mini_agentic_rl.policy import LossInputs


def _reference(lengths, logprobs, behaviour, references, advantages, loss, aggregation, max_length):
    """Equation 3 of the GRPO paper, one number at a time."""
    per_trajectory = []
    position = 0
    for length, advantage in zip(lengths, advantages, strict=True):
        terms = []
        for _ in range(length):
            ratio = math.exp(logprobs[position] - behaviour[position])
            clipped = min(max(ratio, 1 - loss.clip_low), 1 + loss.clip_high)
            term = -min(ratio * advantage, clipped * advantage)
            if loss.kl_coef:
                log_ratio = logprobs[position] - references[position]
                kl = {
                    "k1": log_ratio,
                    "k2": log_ratio**2 / 2,
                    "k3": math.exp(-log_ratio) - 1 + log_ratio,
                }[loss.kl_estimator]
                term += loss.kl_coef * kl
            terms.append(term)
            position += 1
        per_trajectory.append(terms)
    if aggregation == "token":
        return sum(map(sum, per_trajectory)) / sum(lengths)
    if aggregation == "sequence":
        return sum(sum(terms) / len(terms) for terms in per_trajectory) / len(lengths)
    return sum(map(sum, per_trajectory)) / (len(lengths) * max_length)


@pytest.mark.parametrize("aggregation", ["token", "sequence", "dr_grpo"])
@pytest.mark.parametrize("kl", [None, "k1", "k2", "k3"])
def test_the_loss_equals_the_loop_written_reference(aggregation, kl):
    rng = np.random.default_rng(3)
    lengths = [5, 1, 9, 3]
    total = sum(lengths)
    behaviour = rng.normal(-2, 1, total)
    logprobs = behaviour + rng.normal(0, 0.4, total)
    references = behaviour + rng.normal(0, 0.4, total)
    advantages = [1.2, -0.7, 0.3, -0.8]
    loss = PolicyGradientLoss(clip_low=0.2, clip_high=0.28, kl_coef=0.3 if kl else 0.0, kl_estimator=kl or "k3")
    weights = term_weights(lengths, aggregation, 20)
    trajectory = np.repeat(np.arange(4), lengths)
    out = loss(
        LossInputs(
            weights_S=torch.tensor(weights[trajectory]).double(),
            advantages_S=torch.tensor(np.array(advantages)[trajectory]),
            reference_logprobs_S=torch.tensor(references),
            logprobs_S=torch.tensor(logprobs),
            behaviour_logprobs_S=torch.tensor(behaviour),
            entropy_S=torch.zeros(total),
        )
    )
    expected = _reference(lengths, logprobs, behaviour, references, advantages, loss, aggregation, 20)
    assert float(out.loss) == pytest.approx(expected, rel=1e-5)


def test_no_sampled_token_is_an_error_that_says_so():
    with pytest.raises(ValueError, match="no trajectory has a sampled token"):
        term_weights([], "token", 1)
