"""Corrections for rollouts of older weights: the ratio is to what each token's own version recorded."""

from __future__ import annotations

import math

import numpy as np
import pytest

from helpers import sample_all, tiny_policy
from mini_agentic_rl.algorithm.groups import Group, Trajectory
from mini_agentic_rl.algorithm.grpo import batch_of, take_steps
from mini_agentic_rl.algorithm.settings import GRPOSettings
from mini_agentic_rl.policy import LearnerSettings, LossOutputs
from mini_agentic_rl.tokens import SamplingParams, TokenTree, pack

LOW, HIGH, DELTA = 0.8, 1.2, 0.001
REWARDS = (1.0, 0.0, 0.5, 0.0)


def _alone(record):
    tree = TokenTree()
    tree.insert(record)
    return pack([tree])


@pytest.fixture(scope="module")
def stale():
    """Rollouts of two versions, the second of which is the present one, and what present weights say of each token."""
    with tiny_policy() as policy:
        learner = policy.run(lambda: policy.learner(LearnerSettings(learning_rate=0.02)))
        records = []
        for version in range(2):
            params = [SamplingParams(max_tokens=8, seed=10 * version + n) for n in range(2)]
            records += sample_all(policy, [list(range(30, 50))] * 2, params)
            if version == 0:

                def learn(first=records[0]):
                    learner.forward_backward(_alone(first), lambda inputs: LossOutputs(inputs.logprobs_S.sum()))
                    learner.optim_step()

                policy.run(learn)
        current = [policy.run(lambda r=r: learner.logprobs(_alone(r))).double().numpy() for r in records]
        yield policy, learner, records, current


def _learnt(stale, **settings):
    policy, learner, records, _ = stale
    chosen = GRPOSettings(max_staleness=1, loss_aggregation="token", divergence_bound=DELTA, **settings)
    trajectories = [Trajectory(str(n), [r], reward) for n, (r, reward) in enumerate(zip(records, REWARDS, strict=True))]
    batch = batch_of([Group("g", trajectories)], chosen)
    assert batch is not None
    optim_step = learner.optim_step
    learner.optim_step = dict  # the same weights for every correction
    try:
        return policy.run(lambda: take_steps(learner, batch, chosen))
    finally:
        learner.optim_step = optim_step
        policy.run(lambda: [setattr(parameter, "grad", None) for parameter in learner.parameters])


def _weights(name, ratios):
    """Each correction, written out for the tokens of one rollout."""
    found = []
    for ratio in ratios:
        if name == "token":
            found.append(min(ratio, HIGH))
        elif name == "sequence":
            found.append(min(math.prod(ratios), HIGH))
        else:
            found.append(ratio if LOW <= ratio <= HIGH else 0.0)
    return found


@pytest.mark.parametrize("name", ["token", "sequence", "icepop"])
def test_a_correction_weighs_each_token_by_what_its_own_version_recorded(stale, name):
    _, _, records, current = stale
    metrics = _learnt(stale, importance_correction=name, importance_cap=HIGH, importance_floor=LOW)
    expected = []
    for record, now in zip(records, current, strict=True):
        expected += _weights(name, [math.exp(a - b) for a, b in zip(now, record.logprobs, strict=True)])
    assert metrics["importance/mean"] == pytest.approx(np.mean(expected), abs=1e-4)
    assert metrics["importance/masked"] == pytest.approx(np.mean(np.array(expected) == 0), abs=1e-6)
    assert len({round(weight, 3) for weight in expected}) > 1, "the weights have moved"
    assert metrics["mismatch/mean_abs"] < 1e-4, "that of present weights alone"
    assert metrics["staleness/kl"] > 1e-4


def test_dppo_masks_by_the_divergence_from_the_version_that_sampled(stale):
    _, _, records, current = stale
    metrics = _learnt(stale, policy_loss="dppo_tv")
    assert "importance/mean" not in metrics
    mean, deviation = np.mean(REWARDS), np.std(REWARDS)
    masked = []
    for record, now, reward in zip(records, current, REWARDS, strict=True):
        advantage = (reward - mean) / deviation
        for new, old in zip(np.exp(now), np.exp(record.logprobs), strict=True):
            leads_away = (new / old > 1) == (advantage > 0) and new != old
            masked.append(leads_away and abs(new - old) > DELTA)
    assert metrics["clip_fraction"] == pytest.approx(np.mean(masked), abs=1e-6)
    assert 0 < np.mean(masked) < 1
