"""What TRL is given of a rollout: every sampled token under the mask, nothing else, or a clear refusal."""

from __future__ import annotations

import numpy as np
import pytest

from mini_agentic_rl import MiniGRPO
from mini_agentic_rl.algorithm.groups import Trajectory, credit_calls
from mini_agentic_rl.errors import UserError
from mini_agentic_rl.integrations.trl.backend import row_of
from mini_agentic_rl.policy import PolicyError
from mini_agentic_rl.tokens import CompletionRecord


def _record(prompt, output, *, forced=None, temperature=1.0):
    return CompletionRecord(
        np.array(prompt),
        np.array(output),
        -np.array(output, np.float32) / 10,
        forced=None if forced is None else np.array(forced),
        temperature=temperature,
    )


THREE_TURNS = [
    _record([1, 2], [3, 4]),
    _record([1, 2, 3, 4, 90, 91], [5, 6], forced=[True, False]),
    _record([1, 2, 3, 4, 90, 91, 5, 6, 92], [7]),
]


def test_three_turns_are_one_completion_with_what_was_not_sampled_under_the_mask():
    row = row_of(Trajectory("r", THREE_TURNS, 0.5), 1.0)
    assert row.prompt_ids == [1, 2]
    assert row.completion_ids == [3, 4, 90, 91, 5, 6, 92, 7]
    assert row.mask == [1, 1, 0, 0, 0, 1, 0, 1]
    assert row.logprobs == pytest.approx([-0.3, -0.4, 0, 0, 0, -0.6, 0, -0.7])
    assert row.reward == 0.5


def test_only_the_last_call_is_trained_where_that_was_asked_for():
    credit = credit_calls("last_call", THREE_TURNS, 0.5, np.zeros(3), 0.5)
    row = row_of(Trajectory("r", THREE_TURNS, 0.5, *credit), 1.0)
    assert row.mask == [0, 0, 0, 0, 0, 0, 0, 1]


@pytest.mark.parametrize("second", [[1, 2, 3, 9, 90], [8, 8, 8], [1, 2]])
def test_calls_that_do_not_continue_each_other_are_refused(second):
    records = [THREE_TURNS[0], _record(second, [5])]
    with pytest.raises(UserError, match=r"call 2 of rollout r does not continue .* `backend=native`"):
        row_of(Trajectory("r", records, 1.0), 1.0)


def test_another_temperature_than_the_settings_is_refused():
    with pytest.raises(UserError, match=r"sampled at 0\.7"):
        row_of(Trajectory("r", [_record([1], [2], temperature=0.7)], 1.0), 1.0)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"preset": "rloo"}, "baseline='leave_one_out'"),
        ({"preset": "reinforce++"}, "advantage_normalization='batch'"),
        ({"preset": "dapo"}, "dynamic_sampling=True"),
        ({"policy_loss": "gspo", "loss_aggregation": "sequence"}, "policy_loss='gspo'"),
        ({"credit": "per_turn"}, "credit='per_turn'"),
        ({"kl_coef": 0.1, "kl_estimator": "k2"}, "kl_estimator='k2'"),
        ({"max_update_kl": 0.01}, r"max_update_kl=0\.01"),
        ({"adapters": ("a", "b")}, "several adapters"),
        ({"fixed_adapters": {"a": "folder"}}, "fixed_adapters"),
    ],
)
def test_what_trl_does_not_do_is_refused_by_name(options, complaint):
    with pytest.raises(UserError, match=complaint):
        MiniGRPO("embedded", backend="trl", **options)


def test_presets_that_trl_knows_are_taken_and_another_backend_is_not():
    for preset in ("grpo", "dr_grpo"):
        MiniGRPO("embedded", backend="trl", preset=preset)
    MiniGRPO("embedded", backend="trl", max_update_kl=0)
    with pytest.raises(PolicyError, match="backend: must be 'native' or 'trl'"):
        MiniGRPO("embedded", backend="vllm")
