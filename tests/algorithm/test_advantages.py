"""Advantages against references written as loops, with each form of credit, and of several rewards (GDPO)."""

from __future__ import annotations

import textwrap

import numpy as np
import pytest
from pydantic import ValidationError

from mini_agentic_rl.algorithm import MiniGRPO
from mini_agentic_rl.algorithm.advantages import (
    ADVANTAGES,
    advantage_of,
    batch_normalized,
    group_centred,
    leave_one_out,
)
from mini_agentic_rl.algorithm.batch import with_overlong_penalty, with_separate_rewards
from mini_agentic_rl.algorithm.groups import Group, Trajectory, credit_calls
from mini_agentic_rl.algorithm.grpo import batch_of
from mini_agentic_rl.algorithm.presets import PRESETS
from mini_agentic_rl.algorithm.settings import GRPOSettings
from mini_agentic_rl.errors import UserError
from mini_agentic_rl.tokens import CompletionRecord


@pytest.mark.parametrize("shape", [(5,), (5, 3)])
def test_leave_one_out_compares_each_with_the_mean_of_the_others(shape):
    rewards = np.random.default_rng(0).normal(size=shape)
    expected = [rewards[i] - sum(rewards[j] for j in range(5) if j != i) / 4 for i in range(5)]
    np.testing.assert_allclose(leave_one_out(rewards), expected)
    np.testing.assert_allclose(leave_one_out(rewards), group_centred(rewards) * 5 / 4)


def test_an_advantage_in_the_user_s_own_file_is_registered_or_named_by_module_and_function(tmp_path, monkeypatch):
    """Leave-one-out with a floor."""
    monkeypatch.syspath_prepend(str(tmp_path))
    source = """
    import numpy as np
    from mini_agentic_rl.algorithm import register_advantage

    @register_advantage("floored")
    def floored(rewards):
        others = (rewards.sum(axis=0) - rewards) / (len(rewards) - 1)
        return np.maximum(rewards - others, -0.25)

    def total(rewards):
        return rewards.sum()
    """
    (tmp_path / "own_advantages.py").write_text(textwrap.dedent(source))
    try:
        settings = GRPOSettings(baseline="own_advantages:floored", normalize_advantage=False)
        assert GRPOSettings(baseline="floored").baseline == "floored"
        batch = batch_of([_group([1.0, 0.0, 0.0])], settings)
        found = [float(batch.inputs.advantages_S[batch.packed.trajectory_S == number][0]) for number in range(3)]
        assert found == [1.0, -0.25, -0.25]
        with pytest.raises(UserError, match=r"shape \(\) for rewards of shape \(3,\)"):
            batch_of([_group([1.0, 0.0, 0.0])], GRPOSettings(baseline="own_advantages:total"))
        with pytest.raises(UserError, match="own_advantages:nothing"):
            GRPOSettings(baseline="own_advantages:nothing")
        with pytest.raises(ValidationError, match="'group', 'leave_one_out' or 'none'"):
            GRPOSettings(baseline="mean")
        monkeypatch.setitem(ADVANTAGES, "median", lambda rewards: rewards - np.median(rewards, axis=0))
        assert MiniGRPO("embedded", baseline="median").settings.baseline == "median"
    finally:
        for name in ("floored", "own_advantages:floored", "own_advantages:total"):
            ADVANTAGES.pop(name, None)


@pytest.mark.parametrize("rewards", [[1, 0, 0, 0], [1, 1, 0, 1], [0.5, 0.25, 1.0, 0.0]])
@pytest.mark.parametrize("baseline", ["group", "none"])
def test_maxrl_divides_by_the_mean_of_the_group(rewards, baseline):
    mean = sum(rewards) / len(rewards)
    expected = [(reward - (mean if baseline == "group" else 0)) / mean for reward in rewards]
    np.testing.assert_allclose(advantage_of(baseline, "mean")(np.array(rewards, np.float64)), expected)


def test_maxrl_has_nothing_to_say_without_a_success_and_stays_within_what_rewards_of_0_and_1_give():
    advantage = advantage_of("group", "mean")
    assert advantage(np.zeros(4)).tolist() == [0.0] * 4
    assert advantage(np.array([-1.0, 0.0, 0.0, 0.0])).tolist() == [0.0] * 4
    found = advantage(np.array([1.0, -0.99, 0.0, 0.0]))  # the mean is near 0
    assert (found.max(), found.min()) == (4.0, -4.0)
    columns = advantage(np.array([[1.0, 0.2], [0.0, 0.0]]))
    np.testing.assert_allclose(columns, [[0.5 / 0.3, 0.1 / 0.3], [-0.5 / 0.3, -0.1 / 0.3]])


@pytest.mark.parametrize("alike", [True, False])
def test_normalised_over_the_batch_advantages_have_mean_zero_and_deviation_one_as_the_loss_weighs_them(alike):
    rng = np.random.default_rng(1)
    advantages, weights = rng.normal(2, 3, 50), np.ones(50) if alike else rng.random(50)
    mean = sum(w * a for w, a in zip(weights, advantages, strict=True)) / sum(weights)
    variance = sum(w * (a - mean) ** 2 for w, a in zip(weights, advantages, strict=True)) / sum(weights)
    found = batch_normalized(advantages, weights)
    np.testing.assert_allclose(found, (advantages - mean) / variance**0.5, rtol=1e-5)
    assert not batch_normalized(np.full(4, 0.7), np.ones(4)).any()


def _record(length, prompt=1):
    return CompletionRecord(np.array([prompt]), np.arange(length), np.zeros(length, np.float32))


def _group(rewards, lengths=None, turns=1, mode="broadcast"):
    trajectories = []
    for number, reward in enumerate(rewards):
        length = 2 + number if lengths is None else lengths[number]
        records = [_record(length, prompt=10 * number + turn) for turn in range(turns)]
        credit = credit_calls(mode, records, reward, np.arange(turns) * float(reward), reward, discount=0.5)
        trajectories.append(Trajectory(str(number), records, reward, *credit))
    return Group("task", trajectories)


def test_an_overlong_call_takes_its_punishment_off_the_reward_before_groups_are_compared():
    (shaped,) = with_overlong_penalty([_group([1.0, 1.0, 0.0], lengths=[6, 9, 10])], 10, 0.3, 2.0)
    np.testing.assert_allclose(shaped.credits, [1.0, 1.0 - 2 * 2 / 3, -2.0])
    assert shaped.rewards.tolist() == [1.0, 1.0, 0.0]


def test_a_penalty_is_on_all_turns_alike():
    trajectory = _group([2.0], turns=3, mode="per_turn").trajectories[0]
    assert trajectory.lowered(0.5).values_C.tolist() == [1.5, 3.5, 5.5]
    assert trajectory.lowered(0.0) is trajectory


@pytest.mark.parametrize("mode", ["broadcast", "last_call", "per_turn", "discounted"])
@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_takes_every_form_of_credit(preset, mode):
    if preset == "gdpo" and mode in ("per_turn", "discounted"):
        with pytest.raises(ValueError, match="takes one reward"):
            GRPOSettings(preset=preset, credit=mode)
        return
    settings = GRPOSettings(preset=preset, credit=mode, max_trajectory_tokens=9)
    groups = [_group([1.0, 0.0, 0.5], turns=2, mode=mode), _group([0.25, 0.25], turns=2, mode=mode)]
    batch = batch_of(groups, settings)
    per_rollout = {"broadcast": 2, "discounted": 2, "per_turn": 2, "last_call": 1}[mode]
    expected = sum(per_rollout * record.output_ids.size for t in groups[0].trajectories for record in t.records[:1])
    if preset == "reinforce++":  # rewards are compared with those of the whole batch, not of the group
        expected += sum(per_rollout * t.records[0].output_ids.size for t in groups[1].trajectories)
    # A call as good as its group's mean has an advantage where the whole batch is normalised after that, and is a part
    # of its rollout's ratio.
    elif preset not in ("gdpo", "gspo"):
        expected -= 4 * per_rollout
    assert np.isfinite(batch.inputs.advantages_S.numpy()).all()
    assert batch.inputs.advantages_S.any()
    first = batch.packed.trajectory_S == 0
    if mode in ("per_turn", "discounted"):
        assert len(set(batch.inputs.advantages_S[first].numpy().round(6).tolist())) == 2
    else:
        assert len(set(batch.inputs.advantages_S[first].tolist())) == 1
    assert batch.packed.term_count == expected


REWARDS = [[(1.0, 0.2), (0.0, 0.4), (1.0, 0.0)], [(0.0, 0.5), (0.0, 1.0), (0.0, 0.0)]]


def _named_group(number, rewards):
    trajectories = []
    for index, (correct, brief) in enumerate(rewards):
        record = CompletionRecord(np.array([number]), np.array([index, 7]), np.zeros(2, np.float32))
        named = {"correct": correct, "brief": brief}
        trajectories.append(Trajectory(f"{number}/{index}", [record], correct, dimensions=named))
    return Group(str(number), trajectories)


def _gdpo(rewards, weights):
    """Equations 4 to 6, one number after another."""
    summed = []
    for group in rewards:
        for rollout in group:
            total = 0.0
            for k, weight in enumerate(weights):
                column = [other[k] for other in group]
                mean = sum(column) / len(column)
                deviation = (sum((value - mean) ** 2 for value in column) / len(column)) ** 0.5
                total += weight * ((rollout[k] - mean) / (deviation + 1e-6) if deviation else 0.0)
            summed.append(total)
    mean = sum(summed) / len(summed)
    deviation = (sum((value - mean) ** 2 for value in summed) / len(summed)) ** 0.5
    return [(value - mean) / (deviation + 1e-6) for value in summed]


@pytest.mark.parametrize("weights", [[], [1.0, 0.25]])
def test_each_reward_is_compared_by_itself_and_their_sum_over_the_batch(weights):
    settings = GRPOSettings(
        separate_rewards="correct,brief", separate_reward_weights=weights, advantage_normalization="batch"
    )
    batch = batch_of([_named_group(number, rewards) for number, rewards in enumerate(REWARDS)], settings)
    expected = _gdpo(REWARDS, weights or [1.0, 1.0])
    found = [float(batch.inputs.advantages_S[batch.packed.call_S == call][0]) for call in range(6)]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


def test_groups_alike_in_the_primary_reward_are_told_apart_by_another():
    groups = [_named_group(1, REWARDS[1])]
    assert batch_of(groups, GRPOSettings()) is None
    assert batch_of(groups, GRPOSettings(preset="gdpo")) is not None


def test_a_name_that_no_rollout_has_is_an_error_and_a_rollout_that_failed_has_zeros():
    groups = [_named_group(0, REWARDS[0])]
    with pytest.raises(UserError, match="'bried'; there are: correct, brief"):
        with_separate_rewards(groups, ["bried"], [])
    failed = Group("x", [*groups[0].trajectories, Trajectory("f", groups[0].trajectories[0].records, 0.0)])
    (found,) = with_separate_rewards([failed], ["correct"], [])
    np.testing.assert_allclose(found.credits, [1.0, -1.0, 1.0, -1.0], rtol=1e-5)


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"credit": "per_turn"}, "credit=per_turn"),
        ({"advantage_normalization": "group"}, "advantage_normalization=batch"),
        ({"separate_rewards": ["a", "b"], "separate_reward_weights": [1.0]}, "1 `separate_reward_weights` for 2"),
    ],
)
def test_settings_that_do_not_go_with_it_are_refused(given, match):
    with pytest.raises(ValidationError, match=match):
        GRPOSettings(**{"separate_rewards": ["a"], "advantage_normalization": "batch", **given})
