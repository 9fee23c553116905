"""The PPO loss against a reference written as loops, and its gradient through packed trees."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from helpers import group_of_conversations, tiny_policy
from mini_agentic_rl.algorithm.batch import pack_trajectories
from mini_agentic_rl.algorithm.groups import Group, Trajectory
from mini_agentic_rl.algorithm.policy_gradient import PolicyGradientLoss, PPOLoss, ValueLoss
from mini_agentic_rl.algorithm.ppo import PPOObjective
from mini_agentic_rl.algorithm.settings import PPOSettings
from mini_agentic_rl.policy import LearnerSettings, LossInputs, LossOutputs, ValueSettings
from mini_agentic_rl.tokens import TokenTree, pack


def _reference(rows, clip, value_clip, coefficient):
    """One term after the other: (weight, logprob, behaviour, advantage, value, old value, return)."""
    total = 0.0
    for weight, logprob, behaviour, advantage, value, old, target in rows:
        ratio = math.exp(logprob - behaviour)
        policy = -min(ratio * advantage, min(max(ratio, 1 - clip), 1 + clip) * advantage)
        error = (value - target) ** 2
        if value_clip is not None:
            error = max(error, (min(max(value, old - value_clip), old + value_clip) - target) ** 2)
        total += weight * (policy + coefficient * error / 2)
    return total


@pytest.mark.parametrize("value_clip", [None, 0.2])
def test_the_loss_equals_the_loop_written_reference(value_clip):
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(40, 7)) * [0.1, 0.3, 0.3, 1, 1, 1, 1]
    weight, logprob, behaviour, advantage, value, old, target = torch.tensor(rows).T
    loss = PPOLoss(PolicyGradientLoss(), ValueLoss(value_clip), 0.7)
    inputs = LossInputs(weight, advantage, old_values_S=old, returns_S=target, logprobs_S=logprob, values_S=value)
    found = loss(replace(inputs, behaviour_logprobs_S=behaviour, entropy_S=torch.zeros(40)))
    assert float(found.loss) == pytest.approx(_reference(rows, 0.2, value_clip, 0.7), rel=1e-9)
    assert ("value/clip_fraction" in found.metrics) == (value_clip is not None)


def test_a_value_beyond_its_clip_range_has_no_gradient_where_it_has_gone_the_right_way():
    values = torch.tensor([0.5, 0.5, 0.1], requires_grad=True)
    returns = torch.tensor([1.0, -1.0, 1.0])
    inputs = LossInputs(torch.ones(3), old_values_S=torch.zeros(3), returns_S=returns, values_S=values)
    ValueLoss(0.2)(inputs).loss.backward()
    assert values.grad.tolist() == pytest.approx([0.0, 1.5, -0.9])


def test_a_learner_without_a_critic_is_told_so():
    with pytest.raises(ValueError, match="learner with a critic"):
        ValueLoss()(LossInputs(torch.zeros(1)))


def _squares(inputs):
    """Pulls every value to a target of its own."""
    errors = (inputs.values_S - inputs.returns_S).square()
    return LossOutputs((errors * inputs.weights_S).sum())


def _learner(policy, *, trains_adapter=False, **settings):
    return policy.value_learner(LearnerSettings(**settings), ValueSettings(trains_adapter=trains_adapter))


def _value_gradients(policy, trees, **settings):
    def job():
        learner = _learner(policy, trains_adapter=True, **settings)
        with torch.no_grad():
            learner.head.weight.copy_(torch.linspace(-3, 3, learner.head.weight.numel()))
        values = []
        for tree in trees:
            packed = pack([tree])
            targets = torch.from_numpy(np.sin(packed.trajectory_S + packed.behaviour_logprobs_S).astype(np.float32))
            inputs = LossInputs(torch.full((packed.term_count,), 0.01), returns_S=targets)
            learner.forward_backward(packed, _squares, inputs)
            values.append(learner.values(packed))
        parameters = [*learner.parameters, *learner.head.parameters()]
        found = torch.cat([p.grad.flatten().clone() for p in parameters])
        for parameter in parameters:
            parameter.grad = None
        return torch.cat(values), found

    return policy.run(job)


def test_values_and_their_gradients_are_those_of_the_unrolled_sequences_however_they_are_split():
    with tiny_policy() as policy:
        conversations = group_of_conversations(policy)
        together, apart = TokenTree(), []
        for index, records in enumerate(conversations):
            alone = TokenTree()
            for record in records:
                together.insert(record, index)
                alone.insert(record, index)
            apart.append(alone)
        values, gradient = _value_gradients(policy, apart, max_batch_tokens=1000)
        for max_tokens in (1000, 13):
            in_tree, of_tree = _value_gradients(policy, [together], max_batch_tokens=max_tokens)
            assert (values - in_tree).abs().max() < 1e-4
            assert (gradient - of_tree).norm() / gradient.norm() < 1e-4
    assert values.std() > 0.01


def test_the_head_learns_alone_unless_it_may_train_the_adapter():
    with tiny_policy() as policy:
        tree = TokenTree()
        for index, records in enumerate(group_of_conversations(policy)):
            for record in records:
                tree.insert(record, index)
        packed = pack([tree])
        ones = torch.ones(packed.term_count)
        inputs = LossInputs(ones, returns_S=ones)

        def job(trains_adapter):
            learner = _learner(policy, trains_adapter=trains_adapter)
            learner.head.weight.data.fill_(0.1)
            learner.forward_backward(packed, _squares, inputs)
            return learner, any(p.grad is not None and bool(p.grad.any()) for p in learner.parameters)

        assert not policy.run(lambda: job(False))[1]
        learner, trains = policy.run(lambda: job(True))
        assert trains
        before = [p.detach().clone() for p in learner.parameters]
        version = policy.version
        policy.run(learner.value_step)
        assert learner.head.weight.std() > 0
        assert policy.version == version
        assert all(torch.equal(old, new) for old, new in zip(before, learner.parameters, strict=True))
        assert all(p.grad is None for p in learner.parameters)


def _groups(policy):
    """Rollouts of one task whose first token decides: a critic that sees it can know the reward."""
    conversations = group_of_conversations(policy, rollouts=8)
    return [
        Group("t", [Trajectory(str(n), records, float(n % 2)) for n, records in enumerate(conversations)]),
    ]


def test_the_critic_warms_up_alone_and_comes_to_explain_the_rewards():
    settings = PPOSettings(value_warmup_steps=20, epochs_per_batch=2, value_learning_rate=0.1, value_clip=None)
    with tiny_policy() as policy:
        groups = _groups(policy)
        objective = policy.run(lambda: PPOObjective({"default": _learner(policy)}, settings))
        figures = [policy.run(lambda: objective.update("default", groups)) for _ in range(21)]
        assert policy.version == 2 * settings.minibatches
    assert figures[0]["value/explained_variance"] == 0
    assert figures[-1]["value/explained_variance"] > 0.3
    assert figures[-1]["value/loss"] < 0.7 * figures[0]["value/loss"]
    assert "clip_fraction" not in figures[0]
    assert figures[-1]["mismatch/mean_abs"] < 1e-4


def test_a_kl_penalty_in_the_reward_lowers_what_is_returned():
    with tiny_policy() as policy:
        groups = _groups(policy)
        found = {}
        for coefficient in (0.0, 0.1):
            settings = PPOSettings(kl_coef=coefficient, value_warmup_steps=5)
            objective = policy.run(lambda s=settings: PPOObjective({"default": _learner(policy)}, s))
            found[coefficient] = policy.run(lambda o=objective: o.update("default", groups))
        packed = pack_trajectories(groups[0].trajectories)
        reference = policy.run(lambda: _learner(policy).logprobs(packed, reference=True)).numpy()
    k1 = packed.behaviour_logprobs_S - reference
    assert found[0.1]["kl"] == pytest.approx(k1.mean(), rel=1e-4)
    position = np.concatenate([np.arange(1, n + 1) for n in np.bincount(packed.trajectory_S)])
    lower = 0.1 * (k1 * position).sum() / k1.size  # each token's penalty is in the returns of all before it
    assert found[0.0]["value/return_mean"] - found[0.1]["value/return_mean"] == pytest.approx(lower, rel=1e-3)


def test_a_call_longer_than_the_bound_is_punished_at_its_last_token():
    with tiny_policy() as policy:
        groups = _groups(policy)
        returns = []
        for options in ({}, {"overlong_buffer": 1.0, "overlong_penalty": 0.5, "max_new_tokens": 1}):
            settings = PPOSettings(value_warmup_steps=5, **options)
            objective = policy.run(lambda s=settings: PPOObjective({"default": _learner(policy)}, s))
            returns.append(policy.run(lambda o=objective: o.update("default", groups))["value/return_mean"])
    assert returns[0] - returns[1] == pytest.approx(0.5)


def test_the_critic_is_kept_in_a_checkpoint(tmp_path):
    settings = PPOSettings(value_warmup_steps=1)
    with tiny_policy() as policy:
        groups = _groups(policy)
        first = policy.run(lambda: PPOObjective({"default": _learner(policy)}, settings))
        policy.run(lambda: first.update("default", groups))
        policy.run(lambda: first.save_state(tmp_path))
        second = policy.run(lambda: PPOObjective({"default": _learner(policy)}, settings))
        policy.run(lambda: second.load_state(tmp_path))
        expected = policy.run(lambda: first.learners["default"].values(pack_trajectories(groups[0].trajectories)))
        found = policy.run(lambda: second.learners["default"].values(pack_trajectories(groups[0].trajectories)))
        assert torch.equal(expected, found)
        assert found.any()
        assert "clip_fraction" in policy.run(lambda: second.update("default", groups))  # its warm-up is over
