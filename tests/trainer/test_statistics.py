"""Intervals, pass@k, majorities and paired tests against independent calculations; the verdict on a run."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest

from mini_agentic_rl.metrics import Finding
from mini_agentic_rl.trainer import verdict_lines, verdict_of
from mini_agentic_rl.trainer.evaluations import majority_share
from mini_agentic_rl.trainer.statistics import (
    accuracy_row,
    bootstrap_interval,
    compare_shares,
    holm,
    mean_row,
    newcombe_interval,
    pass_at_k,
    sign_flip_p,
    wilson_interval,
)

ZERO, ONE, HALF = Fraction(0), Fraction(1), Fraction(1, 2)


@pytest.mark.parametrize(("gained", "lost"), [(7, 1), (0, 0), (5, 5), (12, 0), (30, 14)])
def test_with_one_answer_a_problem_the_test_is_mcnemars(gained, lost):
    discordant = gained + lost
    tail = sum(math.comb(discordant, k) for k in range(min(gained, lost) + 1)) / 2**discordant
    assert sign_flip_p([ONE] * gained + [-ONE] * lost + [ZERO] * 9) == pytest.approx(min(1.0, 2 * tail))


def test_with_several_answers_it_counts_every_way_to_flip_the_signs():
    differences = [Fraction(3, 8), Fraction(-1, 8), HALF, Fraction(1, 4), ZERO, Fraction(-1, 3)]
    observed = abs(sum(differences))
    sums = [
        abs(sum(s * d for s, d in zip(signs, differences, strict=True)))
        for signs in itertools.product((-1, 1), repeat=6)
    ]
    assert sign_flip_p(differences) == pytest.approx(sum(one >= observed for one in sums) / len(sums))


def test_newcombes_interval_is_the_published_one():
    # Bentur et al. 2009, as Fagerland, Lydersen and Laake 2014 (table 5) give it: -0.507 to -0.026
    low, high = newcombe_interval(1, 1, 7, 12)
    assert (round(low, 3), round(high, 3)) == (0.026, 0.507)
    assert newcombe_interval(1, 7, 1, 12) == pytest.approx((-high, -low))


def test_runs_that_solve_the_same_problems_are_not_told_apart_for_certain():
    found = compare_shares([ONE] * 5 + [ZERO] * 5, [ONE] * 5 + [ZERO] * 5)
    assert (found.difference, found.p) == (0.0, 1.0)
    assert found.low < 0 < found.high
    with pytest.raises(ValueError, match="no problem"):
        compare_shares([], [])


def test_with_several_answers_the_interval_is_of_problems_and_not_of_answers():
    first, second = [HALF] * 20, [ONE, HALF] * 10
    found = compare_shares(first, second)
    assert found.difference == 0.25
    assert (found.low, found.high) == bootstrap_interval([0.5, 0.0] * 10)
    assert found.p == pytest.approx(2 / 2**10)


def test_the_bootstrap_agrees_with_the_normal_interval_of_many_problems():
    values = np.random.default_rng(1).normal(0.4, 0.2, 400)
    low, high = bootstrap_interval(values)
    half = 1.96 * values.std() / 20
    assert (low, high) == pytest.approx((values.mean() - half, values.mean() + half), abs=half / 10)
    assert bootstrap_interval(values) == (low, high)
    assert bootstrap_interval([]) == (-math.inf, math.inf)


def test_means_without_spread_have_wilsons_interval():
    assert mean_row("pass@4", [1.0] * 20)["low"] == wilson_interval(20, 20)[0] < 1
    assert mean_row("pass@4", [0.0] * 20)["high"] == wilson_interval(0, 20)[1] > 0
    row = mean_row("pass@1", [1.0, 0.0, 1.0], binary=True)
    assert (row["low"], row["high"]) == wilson_interval(2, 3)
    assert mean_row("nothing", [])["accuracy"] == accuracy_row("nothing", 0, 0)["accuracy"] == 0.0


def test_holm_corrects_the_smallest_most_and_keeps_the_order():
    assert holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


def test_the_wilson_interval_ends_where_the_score_test_rejects():
    z = 1.959963984540054
    for successes, count in ((1, 20), (50, 100), (160, 200)):
        for end in wilson_interval(successes, count):
            assert abs(successes / count - end) == pytest.approx(z * math.sqrt(end * (1 - end) / count), rel=1e-9)


@pytest.mark.parametrize(("samples", "correct", "k"), [(5, 0, 2), (5, 1, 1), (6, 2, 3), (6, 5, 2), (4, 4, 4)])
def test_pass_at_k_is_the_share_of_draws_with_a_right_one(samples, correct, k):
    draws = list(itertools.combinations([True] * correct + [False] * (samples - correct), k))
    assert pass_at_k(samples, correct, k) == pytest.approx(sum(map(any, draws)) / len(draws))


@pytest.mark.parametrize(
    ("estimate", "arguments"),
    [
        *((wilson_interval, arguments) for arguments in ((-1, 5), (6, 5), (0, -1))),
        *((pass_at_k, arguments) for arguments in ((3, 1, 4), (3, 1, 0), (3, 4, 1), (3, -1, 1))),
    ],
)
def test_impossible_counts_are_refused(estimate, arguments):
    with pytest.raises(ValueError, match="must be between"):
        estimate(*arguments)


def test_a_tie_of_votes_counts_as_the_share_of_right_ones():
    def share(*answers, right="7"):
        return majority_share([{"answer": answer, "correct": answer in list(right)} for answer in answers])

    assert share("7", "7", "8", None) == 1.0
    assert share("7", "8", "8", "7", "9", right="79") == 0.5
    assert share(None, None) == 0.0


FINDING = Finding("equal_rewards", "fault", "Most groups teach nothing", "all earned 0", "Take easier tasks")


def answers(name, right, step=0, count=200):
    return [
        {"evaluation": name, "step": step, "hash": str(index), "sample": 0, "correct": index < right}
        for index in range(count)
    ]


def test_a_gain_whose_interval_is_above_0_is_called_learning():
    verdict = verdict_of([*answers("before", 0), *answers("after SFT", 62), *answers("after RL", 195, step=12)])
    assert verdict["first"] == "after SFT"
    assert (verdict["start"], verdict["end"], verdict["tasks"]) == (0.31, 0.975, 200)
    assert verdict["gain"] == pytest.approx(0.665)
    assert 0.55 < verdict["low"] < verdict["gain"] < verdict["high"] < 0.75
    assert verdict["line"].startswith("rewards: 31.0 → 97.5 % of 200 held-out tasks (+66.5 points, 95 % interval ")
    assert verdict["line"].endswith("it learned")
    assert verdict_lines(verdict) == [verdict["line"]]


@pytest.mark.parametrize(
    ("before", "after", "outcome"), [(100, 101, "not shown"), (100, 100, "not shown"), (100, 60, "worse")]
)
def test_a_run_that_did_not_learn_says_so_and_what_to_try(before, after, outcome):
    rows = [*answers("before", before), *answers("after RL", after, step=3)]
    verdict = verdict_of(rows, [FINDING])
    assert verdict["outcome"] == outcome
    assert "it learned" not in verdict["line"]
    assert any("Take easier tasks" in line for line in verdict_lines(verdict))
    assert verdict_of(rows)["advice"]


def test_a_gain_by_one_answer_for_every_task_is_called_in_question():
    rows = [*answers("before", 0), *answers("after RL", 100, step=3)]
    same = Finding("same_answer", "fault", "Every task gets the same answer", "95 % end alike", "Begin anew")
    assert verdict_of(rows, [FINDING])["advice"] == []
    assert verdict_lines(verdict_of(rows, [FINDING, same]))[1:] == [
        "try: Every task gets the same answer: 95 % end alike. Begin anew."
    ]


def test_other_measurements_than_those_of_the_held_out_tasks_do_not_count():
    rows = [*answers("before", 10), *answers("before, transfer", 0), *answers("step 5", 190, step=5)]
    rows += [*answers("after RL", 100, step=9), *answers("after RL, transfer", 0, step=9)]
    verdict = verdict_of(rows)
    assert (verdict["first"], verdict["start"], verdict["end"]) == ("before", 0.05, 0.5)


def test_a_run_without_both_measurements_has_no_verdict():
    assert verdict_of([]) is None
    assert verdict_of(answers("before", 3)) is None
    assert verdict_of(answers("after RL", 3, step=2)) is None
    assert verdict_lines(None) == []
