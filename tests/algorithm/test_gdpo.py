"""Rewards that are compared each by itself (GDPO), against a reference written as loops."""

from __future__ import annotations

import numpy as np
import pytest
from pydantic import ValidationError

from mini_agentic_rl.algorithm.batch import with_separate_rewards
from mini_agentic_rl.algorithm.groups import Group, Trajectory
from mini_agentic_rl.algorithm.grpo import batch_of
from mini_agentic_rl.algorithm.settings import GRPOSettings
from mini_agentic_rl.errors import UserError
from mini_agentic_rl.tokens import CompletionRecord

REWARDS = [[(1.0, 0.2), (0.0, 0.4), (1.0, 0.0)], [(0.0, 0.5), (0.0, 1.0), (0.0, 0.0)]]


def _group(number, rewards):
    trajectories = []
    for index, (correct, brief) in enumerate(rewards):
        record = CompletionRecord(np.array([number]), np.array([index, 7]), np.zeros(2, np.float32))
        named = {"correct": correct, "brief": brief}
        trajectories.append(Trajectory(f"{number}/{index}", [record], correct, dimensions=named))
    return Group(str(number), trajectories)


def _reference(rewards, weights):
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
    batch = batch_of([_group(number, rewards) for number, rewards in enumerate(REWARDS)], settings)
    expected = _reference(REWARDS, weights or [1.0, 1.0])
    found = [float(batch.inputs.advantages_S[batch.packed.call_S == call][0]) for call in range(6)]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


def test_groups_alike_in_the_primary_reward_are_told_apart_by_another():
    groups = [_group(1, REWARDS[1])]
    assert batch_of(groups, GRPOSettings()) is None
    assert batch_of(groups, GRPOSettings(preset="gdpo")) is not None


def test_a_name_that_no_rollout_has_is_an_error_and_a_rollout_that_failed_has_zeros():
    groups = [_group(0, REWARDS[0])]
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
