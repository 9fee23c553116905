"""Form, length and sums."""

from __future__ import annotations

import math

import pytest

from mini_agentic_rl.rewards import has_answer_line, has_boxed_answer, has_thinking, length_penalty, weighted_sum


@pytest.mark.parametrize(
    ("text", "good"),
    [
        ("Answer: 5", True),
        ("First this.\nanswer: 5\n", True),
        ("Answer:", False),
        ("5", False),
        ("Answer: 5\nthat is it", False),
        ("Answer: 5\nAnswer: 5", False),
        ("The Answer: 5", False),
        ("", False),
    ],
)
def test_an_answer_line_is_the_last_and_only_one(text: str, good: bool) -> None:
    assert has_answer_line(text) is good


def test_a_box_is_the_only_one_and_not_empty() -> None:
    assert has_boxed_answer("so \\boxed{5}")
    assert not has_boxed_answer("so \\boxed{ }")
    assert not has_boxed_answer("\\boxed{5} or \\boxed{6}")


def test_thinking_comes_first_and_an_answer_follows() -> None:
    assert has_thinking("<think>hm</think> 5")
    assert not has_thinking("<think>hm</think>")
    assert not has_thinking("<think></think> 5")
    assert not has_thinking("5 <think>hm</think> 5")
    assert not has_thinking("<think>a</think> b <think>c</think> d")


def test_length_costs_nothing_at_first_and_at_most_one() -> None:
    assert [length_penalty(n, free=10, limit=20) for n in (0, 10, 15, 20, 500)] == [0, 0, -0.5, -1, -1]
    with pytest.raises(ValueError, match="free"):
        length_penalty(5, free=20, limit=20)


def test_weights_multiply_and_unweighted_scores_are_ignored() -> None:
    assert weighted_sum({"a": 1.0, "b": 0.5, "c": math.nan}, {"a": 1.0, "b": 0.2, "c": 0.0}) == pytest.approx(1.1)


def test_a_score_that_is_no_number_or_missing_is_an_error() -> None:
    with pytest.raises(ValueError, match="'a'"):
        weighted_sum({"a": math.nan}, {"a": 1.0})
    with pytest.raises(ValueError, match="format"):
        weighted_sum({"a": 1.0}, {"format": 0.1})
