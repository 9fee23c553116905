"""Advantages over time against the sum that the paper writes down, and where rewards stand among the tokens."""

from __future__ import annotations

import numpy as np
import pytest

from mini_agentic_rl.algorithm.advantages import explained_variance, generalized_advantages, whiten
from mini_agentic_rl.algorithm.loop.groups import Group, Rewards, Trajectory, assign
from mini_agentic_rl.algorithm.ppo.objective import minibatches, read_episodes, token_rewards
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


def _three_turns(rewards, mode="per_turn"):
    """Calls of 2, 3 and 1 sampled tokens, with a tool's answer after each; the second call has one forced token."""
    records = [
        _record([1, 2], [3, 4]),
        _record([1, 2, 3, 4, 90], [5, 6, 7], forced=[False, True, False]),
        _record([1, 2, 3, 4, 90, 5, 6, 7, 91], [8]),
    ]
    return Trajectory("r", records, rewards.last, credit=assign(mode, records, rewards), rewards=rewards)


def test_rewards_stand_at_the_tokens_that_earned_them():
    trajectory = _three_turns(Rewards(np.array([0.25, 0.5, 0.0]), 2.0, 2.0))
    # Tools' and forced tokens take no time: 2 + 2 + 1 terms.
    assert token_rewards(trajectory, per_turn=True).tolist() == [0, 0.25, 0, 0.5, 2.0]
    assert token_rewards(trajectory, per_turn=False).tolist() == [0, 0, 0, 0, 2.0]


def test_a_call_without_a_trained_token_passes_its_reward_to_the_token_before():
    records = [_record([1], [2], forced=[True]), _record([1, 2, 9], [3, 4]), _record([1, 2, 9, 3, 4], [5], forced=[1])]
    rewards = Rewards(np.array([0.1, 0.2, 0.4]), 1.0, 1.0)
    trajectory = Trajectory("r", records, 1.0, credit=assign("per_turn", records, rewards), rewards=rewards)
    assert token_rewards(trajectory, per_turn=True) == pytest.approx([0.1, 1.6])


def test_choices_of_one_response_share_its_reward():
    records = [_record([1], [2, 3], response="a"), _record([1], [4], response="a"), _record([1, 4, 9], [5])]
    rewards = Rewards(np.array([0.5, 0.0]), 1.0, 1.0)
    trajectory = Trajectory("r", records, 1.0, credit=assign("per_turn", records, rewards), rewards=rewards)
    assert token_rewards(trajectory, per_turn=True).tolist() == [0, 0, 0.5, 1.0]


def test_only_the_last_call_is_trained_where_that_was_asked_for():
    trajectory = _three_turns(Rewards(np.zeros(3), 1.0, 1.0), mode="last_call")
    episodes = read_episodes([Group("t", [trajectory])], PPOSettings(credit="last_call"))
    assert episodes.lengths == [1]
    assert episodes.rewards_S.tolist() == [1.0]


def test_every_trajectory_is_kept_however_equal_the_rewards_of_its_group():
    group = Group("t", [_three_turns(Rewards(np.zeros(3), 1.0, 1.0)) for _ in range(3)])
    episodes = read_episodes([group, Group("u", [])], PPOSettings())
    assert episodes.lengths == [5, 5, 5]
    assert episodes.packed.term_count == 15
    assert episodes.packed.token_count == 10


def test_truncated_trajectories_can_be_left_out_and_long_calls_be_punished():
    cut = Trajectory("r", [_record([1], [2, 3, 4, 5], finish="length")], 1.0)
    assert read_episodes([Group("t", [cut])], PPOSettings(mask_truncated=True)) is None
    punished = PPOSettings(overlong_buffer=0.5, overlong_penalty=0.5, max_new_tokens=4)
    assert read_episodes([Group("t", [cut])], punished).rewards_S.tolist() == [0, 0, 0, 0.5]


def test_parts_of_a_batch_hold_each_term_once():
    group = Group("t", [_three_turns(Rewards(np.zeros(3), float(n), float(n))) for n in range(5)])
    episodes = read_episodes([group], PPOSettings())
    chosen = list(minibatches(5, 2, seed=3))
    assert sorted(n for part in chosen for n in part) == [0, 1, 2, 3, 4]
    assert chosen == list(minibatches(5, 2, seed=3))
    terms = np.concatenate([episodes.part(part)[1] for part in chosen])
    assert sorted(terms.tolist()) == list(range(25))
    for part in chosen:
        packed, own = episodes.part(part)
        assert packed.term_count == own.size
        np.testing.assert_array_equal(
            packed.tokens_T[packed.token_S], episodes.packed.tokens_T[episodes.packed.token_S[own]]
        )
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
