"""The verdict on a run: whether its held-out tasks show that rewards taught anything."""

from __future__ import annotations

import pytest

from mini_agentic_rl.metrics import Finding
from mini_agentic_rl.trainer import verdict_lines, verdict_of

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
