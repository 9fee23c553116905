"""PPO: advantages over time, where rewards are placed, its loss and gradients, and the whole loop, also resumed."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from letters import TASKS, CountLetters, Letters, fit, ppo_algorithm, weights_digest

from helpers import group_of_conversations, pack_rollouts, tiny_policy
from mini_agentic_rl import MiniPPO
from mini_agentic_rl.algorithm.advantages import explained_variance, generalized_advantages, uncompared, whiten
from mini_agentic_rl.algorithm.batch import make_batch, pack_trajectories
from mini_agentic_rl.algorithm.groups import Group, Trajectory, credit_calls
from mini_agentic_rl.algorithm.policy_gradient import PolicyGradientLoss
from mini_agentic_rl.algorithm.ppo import PPOLoss, PPOObjective, ValueLoss, minibatches, token_rewards
from mini_agentic_rl.algorithm.settings import PPOSettings
from mini_agentic_rl.policy import LearnerSettings, LossInputs, LossOutputs, PolicyError, ValueSettings
from mini_agentic_rl.tokens import CompletionRecord
from mini_agentic_rl.trainer import RunFolder


def _gae(rewards, values, gamma, gae_lambda):
    """Equation 16 of Schulman et al. 2016, as the sum it is: one trajectory, one number at a time."""
    length = len(rewards)

    def delta(t):
        after = values[t + 1] if t + 1 < length else 0.0
        return rewards[t] + gamma * after - values[t]

    return [sum((gamma * gae_lambda) ** k * delta(t + k) for k in range(length - t)) for t in range(length)]


@pytest.mark.parametrize(("gamma", "gae_lambda"), [(1.0, 0.95), (0.9, 0.5), (0.97, 1.0), (0.9, 0.0)])
def test_advantages_equal_the_sum_of_discounted_errors(gamma, gae_lambda):
    rng = np.random.default_rng(0)
    lengths = [4, 1, 7, 2]
    rewards, values = rng.normal(size=14), rng.normal(size=14)
    found = generalized_advantages(rewards, values, lengths, gamma=gamma, gae_lambda=gae_lambda)
    expected, start = [], 0
    for length in lengths:
        own = slice(start, start + length)
        expected += _gae(rewards[own], values[own], gamma, gae_lambda)
        start += length
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_whitened_advantages_have_mean_0_and_deviation_1():
    found = whiten(np.random.default_rng(1).normal(3, 5, 100))
    assert (found.mean(), found.std()) == pytest.approx((0, 1), abs=1e-7)
    assert not whiten(np.full(5, 0.3)).any()


def test_explained_variance_tells_a_good_critic_from_a_bad_one():
    returns = np.array([0.0, 1.0, 2.0, 3.0])
    assert explained_variance(returns, returns) == pytest.approx(1)
    assert explained_variance(np.full(4, 9.0), returns) == pytest.approx(0)
    assert explained_variance(-returns, returns) < 0
    assert explained_variance(returns, np.ones(4)) == 0


def _record(prompt, output, *, forced=None, response="", finish="stop"):
    return CompletionRecord(
        np.array(prompt),
        np.array(output),
        np.full(len(output), -1.0, np.float32),
        forced=None if forced is None else np.array(forced),
        response_id=response,
        finish_reason=finish,
    )


def _trajectory(records, turns, whole, mode="per_turn"):
    turns = np.array(turns, np.float64)
    return Trajectory("r", records, whole, *credit_calls(mode, records, whole, turns, whole), turns, whole)


def _three_turns(turns, whole):
    """Calls of 2, 3 and 1 sampled tokens, with a tool's answer after each; the second call has one forced token."""
    records = [
        _record([1, 2], [3, 4]),
        _record([1, 2, 3, 4, 90], [5, 6, 7], forced=[False, True, False]),
        _record([1, 2, 3, 4, 90, 5, 6, 7, 91], [8]),
    ]
    return _trajectory(records, turns, whole)


def test_rewards_stand_at_the_tokens_that_earned_them():
    trajectory = _three_turns([0.25, 0.5, 0.0], 2.0)
    # Tools' and forced tokens take no time: 2 + 2 + 1 terms.
    assert token_rewards(trajectory, per_turn=True).tolist() == [0, 0.25, 0, 0.5, 2.0]
    assert token_rewards(trajectory, per_turn=False).tolist() == [0, 0, 0, 0, 2.0]


def test_a_call_without_a_trained_token_passes_its_reward_to_the_token_before():
    records = [_record([1], [2], forced=[True]), _record([1, 2, 9], [3, 4]), _record([1, 2, 9, 3, 4], [5], forced=[1])]
    assert token_rewards(_trajectory(records, [0.1, 0.2, 0.4], 1.0), per_turn=True) == pytest.approx([0.1, 1.6])


def test_choices_of_one_response_share_its_reward():
    records = [_record([1], [2, 3], response="a"), _record([1], [4], response="a"), _record([1, 4, 9], [5])]
    assert token_rewards(_trajectory(records, [0.5, 0.0], 1.0), per_turn=True).tolist() == [0, 0, 0.5, 1.0]


def test_only_the_last_call_is_trained_if_the_credit_says_so():
    records = _three_turns([0.0] * 3, 1.0).records
    trajectory = _trajectory(records, [0.0] * 3, 1.0, mode="last_call")
    assert token_rewards(trajectory, per_turn=False).tolist() == [1.0]


def _batch(trajectories, **options):
    options = {"max_length": 9, "mask_truncated": False, "keep_zero_advantage": True, "compared": False, **options}
    return make_batch([Group("t", trajectories), Group("u", [])], uncompared, "token", **options)


def test_every_trajectory_is_kept_however_equal_the_rewards_of_its_group():
    batch = _batch([_three_turns([0.0] * 3, 1.0) for _ in range(3)])
    assert np.bincount(batch.packed.trajectory_S).tolist() == [5, 5, 5]
    assert batch.packed.token_count == 10


def test_truncated_trajectories_can_be_left_out():
    cut = Trajectory("r", [_record([1], [2, 3, 4, 5], finish="length")], 1.0)
    assert _batch([cut], mask_truncated=True) is None


def test_minibatches_hold_each_rollout_once():
    chosen = list(minibatches(5, 2, seed=3))
    assert sorted(n for part in chosen for n in part) == [0, 1, 2, 3, 4]
    assert chosen == list(minibatches(5, 2, seed=3))
    assert len(list(minibatches(2, 4, seed=0))) == 2


@pytest.mark.parametrize(
    ("setting", "complaint"),
    [
        ({"baseline": "group"}, "`baseline=group`"),
        ({"preset": "dapo"}, "preset"),
        ({"credit": "discounted"}, "`credit=per_turn` and `gamma`"),
        ({"policy_loss": "gspo"}, "gspo"),
        ({"dynamic_sampling": True}, "dynamic_sampling"),
        ({"advantage_normalization": "group"}, "whitens over the batch"),
    ],
)
def test_what_compares_rollouts_with_each_other_is_refused(setting, complaint):
    with pytest.raises(ValueError, match=complaint):
        PPOSettings(**setting)


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


def _value_gradients(policy, packs, **settings):
    def job():
        learner = _learner(policy, trains_adapter=True, **settings)
        with torch.no_grad():
            learner.head.weight.copy_(torch.linspace(-3, 3, learner.head.weight.numel()))
        values = []
        for packed in packs:
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
        # Each under its own number, from which its targets follow.
        apart = [pack_rollouts([[]] * index + [records]) for index, records in enumerate(conversations)]
        values, gradient = _value_gradients(policy, apart, max_batch_tokens=1000)
        for max_tokens in (1000, 13):
            in_tree, of_tree = _value_gradients(policy, [pack_rollouts(conversations)], max_batch_tokens=max_tokens)
            assert (values - in_tree).abs().max() < 1e-4
            assert (gradient - of_tree).norm() / gradient.norm() < 1e-4
    assert values.std() > 0.01


def test_the_head_learns_alone_unless_it_may_train_the_adapter():
    with tiny_policy() as policy:
        packed = pack_rollouts(group_of_conversations(policy))
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


def test_a_tiny_model_learns_to_the_threshold_from_one_rollout_of_each_task():
    trained = ppo_algorithm(total_steps=6, tasks_per_step=32, learner=LearnerSettings(learning_rate=1e-2))
    kept = fit(trained, Letters(), TASKS, [CountLetters()], n_runners=32, val_dataset=TASKS)
    before, after = trained.summary["accuracy"]
    assert (before["correct"], after["count"]) == (0, 8)
    assert after["correct"] >= 6
    steps = [row for row in kept.rows if "reward/mean" in row]
    assert len(steps) == 6
    assert all(row["groups/with_signal"] == row["groups/count"] == 32 for row in steps), "the critic is what compares"
    assert max(row.get("mismatch/mean_abs", 0.0) for row in steps) < 1e-4
    assert steps[0]["value/mean"] == 0
    assert steps[-1]["value/mean"] == pytest.approx(steps[-1]["value/return_mean"], abs=0.3)


def test_a_run_gone_on_with_ends_with_the_weights_of_an_unbroken_one(tmp_path):
    def run(folder, steps, resume=False):
        options = {"tasks_per_step": 4, "checkpoint_every": 1, "deterministic": True, "max_new_tokens": 3}
        trained = ppo_algorithm(total_steps=steps, **options)
        # The folder is kept by nobody: a run is resumed with more steps.
        fit(trained, Letters(), TASKS, [CountLetters()], output_dir=RunFolder(folder), resume=resume)
        return weights_digest(folder)

    unbroken = run(tmp_path / "unbroken", 3)
    run(tmp_path / "broken", 2)
    assert run(tmp_path / "broken", 3, resume=True) == unbroken


def test_another_backend_is_refused():
    with pytest.raises(PolicyError, match="backend: 'trl' is MiniGRPO's"):
        MiniPPO("embedded", backend="trl")
