"""Which reward each call is trained with: the formulae by hand, and what holds for every group of rollouts."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mini_agentic_rl.algorithm.advantages import group_centred, group_normalized
from mini_agentic_rl.algorithm.batch import make_batch
from mini_agentic_rl.algorithm.groups import (
    Group,
    Trajectory,
    credit_calls,
    has_signal,
    read_rewards,
    reward_for,
    turn_numbers,
)
from mini_agentic_rl.emitter import emit_reward
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
    assert _credits([1.0, 2.0, 3.0], [7.0]).tolist() == [[1.0, 2.0, 3.0], [7.0, 7.0, 7.0]]
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


def _group(mode: Any, *rewards: tuple[list[float], float]) -> Group:
    """A rollout for each (rewards of its turns, reward of the whole)."""
    return Group(
        "task",
        [
            _trajectory(mode, str(index), _turns(len(turns), first=10 * (index + 1)), turns, whole)
            for index, (turns, whole) in enumerate(rewards)
        ],
    )


def test_each_call_is_trained_with_its_own_advantage() -> None:
    group = _group("per_turn", ([1.0, 0.0, 0.0], 0.0), ([0.0, 1.0, 0.0], 0.0), ([0.0], 0.0))
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
    batch = _batch(_group(mode, ([0.3, 0.0, 0.2, 0.0], 1.0), ([0.0], 0.0)), keep_zero_advantage=True)
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
