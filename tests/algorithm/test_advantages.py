"""Credit of each call and advantages against references written as loops; several rewards (GDPO)."""

from __future__ import annotations

import textwrap
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from mini_agentic_rl.algorithm import MiniGRPO
from mini_agentic_rl.algorithm.advantages import (
    ADVANTAGES,
    advantage_of,
    batch_normalized,
    group_centred,
    group_normalized,
    leave_one_out,
)
from mini_agentic_rl.algorithm.batch import make_batch, with_overlong_penalty, with_separate_rewards
from mini_agentic_rl.algorithm.groups import (
    Group,
    Trajectory,
    credit_calls,
    has_signal,
    read_rewards,
    reward_for,
    turn_numbers,
)
from mini_agentic_rl.algorithm.grpo import batch_of
from mini_agentic_rl.algorithm.settings import GRPOSettings
from mini_agentic_rl.emitter import emit_reward
from mini_agentic_rl.errors import UserError
from mini_agentic_rl.tokens import CompletionRecord
from mini_agentic_rl.types import Span


def _call(sequence_id: int, prompt: list[int], output: list[int], response_id: str = "") -> CompletionRecord:
    return CompletionRecord(
        np.array(prompt, np.int64),
        np.array(output, np.int64),
        np.full(len(output), -0.5, np.float32),
        sequence_id=sequence_id,
        response_id=response_id,
    )


def _turns(count: int, first: int = 10, every: int = 2) -> list[CompletionRecord]:
    """A conversation of `count` calls, two sampled tokens each, whose spans have every `every`-th number."""
    records: list[CompletionRecord] = []
    context = [1, 2]
    for turn in range(count):
        output = [first + turn, 3]
        records.append(_call(1 + turn * every, list(context), output, f"resp-{first}-{turn}"))
        context += [*output, 4]
    return records


def _reward(sequence_id: int, value: Any, **more: Any) -> Span:
    return Span.from_core_fields(emit_reward(value, propagate=False, **more), sequence_id=sequence_id)


def test_a_reward_belongs_to_the_last_call_before_it_and_a_returned_one_to_the_rollout() -> None:
    records = _turns(3, every=4)  # calls at 1, 5 and 9
    spans = [
        _reward(0, 9.0),
        _reward(2, 0.25),
        _reward(3, 0.25),
        _reward(6, {"format": 5.0, "right": -1.0}, primary_key="right"),
        _reward(10, 0.5),
        _reward(11, 2.0, final=True),
    ]
    turns, whole = read_rewards(spans, records)
    assert (turns.tolist(), whole) == ([0.5, -1.0, 0.5], 2.0)


def test_each_of_several_adapters_takes_the_reward_under_its_name_or_else_the_one_for_all() -> None:
    names = ["assistant", "user"]
    assistant, user = (partial(reward_for, adapter=name, adapters=names) for name in names)
    both = _reward(2, {"assistant": 1.0, "user": 0.25}, primary_key="assistant")
    mixed = _reward(3, {"quality": 0.5, "user": -1.0}, primary_key="quality")
    of_user = _reward(5, {"user": 3.0})
    of_all = _reward(6, 2.0)
    for span, values in [(both, (1.0, 0.25)), (mixed, (0.5, -1.0)), (of_user, (None, 3.0)), (of_all, (2.0, 2.0))]:
        assert (assistant(span), user(span)) == values
    records = _turns(2, every=3)  # calls at 1 and 4
    for reward_of, expected in ((assistant, [1.5, 2.0]), (user, [-0.75, 5.0])):
        assert read_rewards([both, mixed, of_user, of_all], records, reward_of)[0].tolist() == expected


def test_the_choices_of_one_response_are_one_call() -> None:
    records = [_call(1, [1], [2], "a"), _call(2, [1], [3], "a"), _call(4, [1, 3], [5], "b"), _call(5, [6], [7])]
    assert turn_numbers(records).tolist() == [0, 0, 1, 2]
    turns, whole = read_rewards([_reward(3, 0.5), _reward(6, 1.0)], records)
    assert turns.tolist() == [0.5, 0.0, 1.0]
    assert credit_calls("per_turn", records, 1.0, turns, whole)[1].tolist() == [0, 0, 1, 2]
    assert credit_calls("last_call", records[:2], 1.0, turns, whole)[1].tolist() == [0, 0]


@pytest.mark.parametrize(
    ("mode", "values", "columns"),
    [
        ("broadcast", [4.0], [0, 0, 0]),
        ("last_call", [4.0], [-1, -1, 0]),
        ("per_turn", [2.5, 1.0, 2.0], [0, 1, 2]),
        # 0.5 - 0.5 * 1 + 0.25 * (0 + 2), then -1 + 0.5 * 2, then 0 + 2
        ("discounted", [0.5, 0.0, 2.0], [0, 1, 2]),
    ],
)
def test_each_mode_follows_its_formula(mode: Any, values: list[float], columns: list[int]) -> None:
    found = credit_calls(mode, _turns(3), 4.0, np.array([0.5, -1.0, 0.0]), 2.0, discount=0.5)
    assert (found[0].tolist(), found[1].tolist()) == (values, columns)


def _credits(*rows: list[float]) -> np.ndarray:
    """The numbers of a group whose rollouts have these at their turns."""
    return Group("t", [Trajectory("r", (), 0.0, np.array(row), np.arange(len(row))) for row in rows]).credits


def test_a_rollout_that_ended_earlier_stands_with_its_last_number() -> None:
    assert _credits([1.0, 2.0, 3.0], [6.0, 7.0]).tolist() == [[1.0, 2.0, 3.0], [6.0, 7.0, 7.0]]
    assert _credits([7.0], [7.0]).shape == (2,)


numbers = st.sampled_from([0.0, 0.1, 0.7, 1.0, -0.3])


@given(st.lists(st.tuples(numbers, st.integers(1, 5)), min_size=2, max_size=6), st.booleans())
@settings(max_examples=40, deadline=None)
def test_where_only_the_rollout_is_rewarded_per_turn_is_broadcast(
    ended: list[tuple[float, int]], normalize: bool
) -> None:
    advantage = group_normalized if normalize else group_centred
    final = np.array([reward for reward, _ in ended])
    stacked = _credits(*([reward] * turns for reward, turns in ended))
    assert has_signal(stacked) == has_signal(final)
    found = advantage(stacked).reshape(len(ended), -1)
    for column in range(found.shape[1]):
        np.testing.assert_allclose(found[:, column], advantage(final), atol=1e-9)


def test_rollouts_with_equal_rewards_turn_by_turn_have_no_signal() -> None:
    alike = _credits(*([0.1, 0.7, 0.3] for _ in range(3)))
    assert not has_signal(alike)
    assert not group_normalized(alike).any()
    one_turn_differs = alike.copy()
    one_turn_differs[0, 1] = 1.0
    found = group_normalized(one_turn_differs)
    assert has_signal(one_turn_differs)
    assert np.flatnonzero(found.any(axis=0)).tolist() == [1]


def _batch(group: Group, **more: Any) -> Any:
    options = {"max_length": 9, "mask_truncated": False, "keep_zero_advantage": False}
    return make_batch([group], group_normalized, "sequence", **{**options, **more})


def _by_token(batch: Any) -> dict[int, float]:
    """Advantage of each sampled token, by its id; the ids of first tokens of calls are all different."""
    ids = batch.packed.tokens_T[batch.packed.token_S]
    return {int(t): float(a) for t, a in zip(ids, batch.inputs.advantages_S, strict=True) if t >= 10}


def _trajectory(mode: Any, name: str, records: list[CompletionRecord], turns: list[float], whole: float) -> Trajectory:
    credit = credit_calls(mode, records, whole, np.array(turns), whole, discount=0.5)
    return Trajectory(name, records, whole, *credit)


def _rewarded_group(mode: Any, *rewards: tuple[list[float], float]) -> Group:
    """A rollout for each (rewards of its turns, reward of the whole)."""
    return Group(
        "task",
        [
            _trajectory(mode, str(index), _turns(len(turns), first=10 * (index + 1)), turns, whole)
            for index, (turns, whole) in enumerate(rewards)
        ],
    )


def test_each_call_is_trained_with_its_own_advantage() -> None:
    group = _rewarded_group("per_turn", ([1.0, 0.0, 0.0], 0.0), ([0.0, 1.0, 0.0], 0.0), ([0.0], 0.0))
    expected = group_normalized(np.array([[1.0, 0, 0], [0, 1.0, 0], [0, 0, 0]]))
    found = _by_token(_batch(group))
    assert found[10] == pytest.approx(expected[0, 0])
    assert found[11] == pytest.approx(expected[0, 1])
    assert found[20] == pytest.approx(expected[1, 0])
    assert found[21] == pytest.approx(expected[1, 1])
    assert found[30] == pytest.approx(expected[2, 0])
    assert not {12, 22} & set(found)  # the third turn was worth the same to all: it carries no gradient
    kept = _by_token(_batch(group, keep_zero_advantage=True))
    assert (kept[12], kept[22]) == (0.0, 0.0)


@pytest.mark.parametrize("mode", ["last_call", "per_turn"])
def test_each_rollout_weighs_the_same_however_many_calls_it_made(mode: Any) -> None:
    batch = _batch(_rewarded_group(mode, ([0.3, 0.0, 0.2, 0.0], 1.0), ([0.0], 0.0)), keep_zero_advantage=True)
    totals = [float(batch.inputs.weights_S[batch.packed.trajectory_S == index].sum()) for index in range(2)]
    np.testing.assert_allclose(totals, [0.5, 0.5], rtol=1e-6)


def test_a_call_that_sampled_nothing_shifts_no_advantage() -> None:
    records = [_call(1, [1, 2], [10, 3], "a"), _call(2, [1, 2, 10, 3, 4], [], "b"), _call(3, [1, 5], [12, 3], "c")]
    trajectories = [
        _trajectory("per_turn", "a", records, [1.0, 5.0, -1.0], 0.0),
        _trajectory("per_turn", "b", _turns(3, first=20), [0.0] * 3, 0.0),
    ]
    found = _by_token(_batch(Group("task", trajectories)))
    expected = group_normalized(np.array([[1.0, 5.0, -1.0], [0.0] * 3]))
    assert (found[10], found[12]) == pytest.approx((expected[0, 0], expected[0, 2]))


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
    (shaped,) = with_overlong_penalty([_group([2.0], lengths=[10], turns=3, mode="per_turn")], 10, 0.3, 0.5)
    assert shaped.trajectories[0].values_C.tolist() == [1.5, 3.5, 5.5], "all turns alike"


@pytest.mark.parametrize(
    ("preset", "calls"),
    [
        ("grpo", 4),  # a call as good as the mean of its group has no gradient
        ("gspo", 6),  # it is a part of its rollout's ratio
        ("gdpo", 6),  # it may have an advantage over the batch
        ("reinforce++", 10),  # rewards are compared over the batch, not in the group
    ],
)
@pytest.mark.parametrize("mode", ["broadcast", "last_call", "per_turn", "discounted"])
def test_calls_without_an_advantage_are_computed_only_where_they_count(preset, calls, mode):
    groups = [
        _group(rewards, turns=2, mode=mode, lengths=[3] * len(rewards)) for rewards in ([1.0, 0.0, 0.5], [0.25, 0.25])
    ]
    if preset == "gdpo" and mode in ("per_turn", "discounted"):
        with pytest.raises(ValueError, match="takes one reward"):
            GRPOSettings(preset=preset, credit=mode)
        return
    batch = batch_of(groups, GRPOSettings(preset=preset, credit=mode))
    advantages = batch.inputs.advantages_S.numpy()
    assert batch.packed.term_count == 3 * (calls // 2 if mode == "last_call" else calls)
    assert np.isfinite(advantages).all()
    of_one = set(advantages[batch.packed.trajectory_S == 0].round(6).tolist())
    assert len(of_one) == (2 if mode in ("per_turn", "discounted") else 1)


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


def test_what_agents_only_report_is_not_compared_as_a_reward():
    (group,) = groups = [_named_group(0, REWARDS[0])]
    counted = [replace(t, dimensions={**t.dimensions, "failed_calls": n}) for n, t in enumerate(group.trajectories)]
    (found,), (expected,) = (
        with_separate_rewards(of, ["all"], []) for of in ([replace(group, trajectories=counted)], groups)
    )
    np.testing.assert_array_equal(found.credits, expected.credits)


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
