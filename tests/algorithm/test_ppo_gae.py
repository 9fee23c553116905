"""Advantages over time against the sum that the paper writes down, and where rewards stand among the tokens."""

from __future__ import annotations

import numpy as np
import pytest

from mini_agentic_rl.algorithm.advantages import explained_variance, generalized_advantages, uncompared, whiten
from mini_agentic_rl.algorithm.batch import make_batch
from mini_agentic_rl.algorithm.groups import Group, Trajectory, credit_calls
from mini_agentic_rl.algorithm.ppo import minibatches, token_rewards
from mini_agentic_rl.algorithm.settings import PPOSettings
from mini_agentic_rl.tokens import CompletionRecord


def _reference(rewards, values, gamma, gae_lambda):
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
        expected += _reference(rewards[own], values[own], gamma, gae_lambda)
        start += length
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_lengths_that_do_not_add_up_are_refused():
    with pytest.raises(ValueError, match="3 rewards and 3 values for 4 terms"):
        generalized_advantages(np.zeros(3), np.zeros(3), [2, 2], gamma=1.0, gae_lambda=1.0)


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
