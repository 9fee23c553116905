"""Intervals and pass@k agree with independent ways of reckoning them."""

from __future__ import annotations

import itertools
import math

import pytest

from mini_agentic_rl.trainer.statistics import accuracy_row, mean_pass_at_k, pass_at_k, wilson_interval


def test_the_wilson_interval_ends_where_the_score_test_rejects():
    z = 1.959963984540054
    for successes, count in ((1, 20), (50, 100), (160, 200)):
        for end in wilson_interval(successes, count):
            assert abs(successes / count - end) == pytest.approx(z * math.sqrt(end * (1 - end) / count), rel=1e-9)


def test_the_wilson_interval_stays_inside_zero_and_one():
    for count in range(1, 100):
        assert wilson_interval(0, count)[0] == 0
        assert wilson_interval(count, count)[1] == 1
    assert 0 < wilson_interval(0, 10)[1] < 0.35
    assert wilson_interval(0, 0) == (0.0, 1.0)


@pytest.mark.parametrize(("successes", "count", "confidence"), [(-1, 5, 0.9), (6, 5, 0.9), (1, 5, 1.0), (0, -1, 0.9)])
def test_an_impossible_proportion_is_refused(successes, count, confidence):
    with pytest.raises(ValueError, match="must be between"):
        wilson_interval(successes, count, confidence=confidence)


@pytest.mark.parametrize(("samples", "correct", "k"), [(5, 0, 2), (5, 1, 1), (6, 2, 3), (6, 5, 2), (4, 4, 4)])
def test_pass_at_k_is_the_share_of_draws_with_a_right_one(samples, correct, k):
    draws = list(itertools.combinations([True] * correct + [False] * (samples - correct), k))
    assert pass_at_k(samples, correct, k) == pytest.approx(sum(map(any, draws)) / len(draws))


@pytest.mark.parametrize(("samples", "correct", "k"), [(3, 1, 4), (3, 1, 0), (3, 4, 1), (3, -1, 1)])
def test_an_impossible_pass_at_k_is_refused(samples, correct, k):
    with pytest.raises(ValueError, match="must be between"):
        pass_at_k(samples, correct, k)


def test_the_mean_over_problems_weighs_each_once():
    assert mean_pass_at_k([(2, 0), (8, 8)], 1) == pytest.approx(0.5)
    assert mean_pass_at_k([], 1) == 0.0


def test_an_accuracy_row_holds_its_interval():
    row = accuracy_row("after RL", 160, 200)
    assert row["low"] < row["accuracy"] == 0.8 < row["high"]
    assert accuracy_row("nothing", 0, 0)["accuracy"] == 0.0
