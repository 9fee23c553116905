"""Tasks of a step: kinds take turns, each task comes once an epoch, and a curriculum prefers half-solved tasks."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from mini_agentic_rl.algorithm import GRPOSettings
from mini_agentic_rl.algorithm.curriculum import TaskDraws, TaskSource, learnability
from mini_agentic_rl.algorithm.seeds import kinds_of, task_order, tasks_of_step
from mini_agentic_rl.algorithm.state import RunProgress


def test_each_step_holds_as_many_tasks_of_each_kind():
    kinds = ["a"] * 40 + ["b"] * 40 + ["c"] * 40 + ["d"] * 40
    for step in range(20):
        rows = tasks_of_step(3, len(kinds), step, 8, kinds)
        assert Counter(kinds[row] for row in rows) == {"a": 2, "b": 2, "c": 2, "d": 2}
    assert sorted(task_order(3, len(kinds), 0, kinds)) == list(range(160))


def test_an_uneven_data_set_still_draws_each_task_once_an_epoch():
    kinds = ["a"] * 3 + ["b"] * 7
    assert sorted(task_order(0, 10, 1, kinds)) == list(range(10))
    assert task_order(0, 10, 1, kinds) != task_order(0, 10, 2, kinds)


def test_tasks_without_a_kind_keep_the_order_that_they_had():
    assert kinds_of([{"question": "?"}, {"question": "!", "kind": "b"}]) is None
    assert kinds_of([]) is None
    assert kinds_of([{"kind": 1}, {"kind": "b"}]) == ["1", "b"]
    assert task_order(5, 30, 0, None) == task_order(5, 30, 0)


def test_tasks_come_in_the_order_of_the_epochs_however_they_are_drawn():
    once = TaskSource(size=5, seed=3, step=2, first=8)
    assert once.draw(4) == tasks_of_step(3, 5, 2, 4)
    in_rounds = TaskSource(size=5, seed=3, step=2, first=8)
    assert [*in_rounds.draw(1), *in_rounds.draw(3)] == once.drawn


def test_a_curriculum_prefers_tasks_that_are_solved_half_of_the_time():
    rates = {str(row): rate for row, rate in enumerate([0.0, 0.1, 0.5, 0.9, 1.0])}
    counts = np.zeros(5)
    for step in range(600):
        counts[TaskSource(size=5, seed=0, step=step, first=0, pass_rates=rates).draw(1)] += 1
    weights = np.array([0.1, 0.36, 1.0, 0.36, 0.1])
    assert [learnability(rate) for rate in rates.values()] == pytest.approx(weights)
    np.testing.assert_allclose(counts / 600, weights / weights.sum(), atol=0.05)


def test_a_curriculum_draws_no_task_twice_while_there_are_others_and_the_same_ones_again():
    def source():
        return TaskSource(size=4, seed=0, step=7, first=0, pass_rates={"1": 1.0})

    drawing = source()
    rows = [*drawing.draw(3), *drawing.draw(3)]
    assert sorted(rows[:4]) == [0, 1, 2, 3]
    again = source()
    assert [*again.draw(3), *again.draw(3)] == rows


def test_pass_rates_follow_what_was_sampled_last():
    progress = RunProgress(pass_rates={"0": 1.0})
    TaskDraws(GRPOSettings(curriculum="pass_rate")).rate(progress, {0: 0.0, 3: 0.25, 4: -2.0})
    assert progress.pass_rates == {"0": 0.5, "3": 0.25, "4": 0.0}
