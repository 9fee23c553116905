"""Tasks of a step: kinds take turns, each task comes once an epoch, and a curriculum prefers half-solved tasks."""

from __future__ import annotations

from collections import Counter

import numpy as np

from mini_agentic_rl.algorithm import GRPOSettings
from mini_agentic_rl.algorithm.state import RunProgress
from mini_agentic_rl.algorithm.tasks import TaskDraws, kinds_of, task_order, tasks_from


def test_each_step_holds_as_many_tasks_of_each_kind_and_each_epoch_each_task():
    kinds = ["a"] * 40 + ["b"] * 40 + ["c"] * 40 + ["d"] * 40
    for step in range(20):
        rows = tasks_from(3, len(kinds), 8 * step, 8, kinds)
        assert Counter(kinds[row] for row in rows) == {"a": 2, "b": 2, "c": 2, "d": 2}
    assert sorted(task_order(3, len(kinds), 0, kinds)) == list(range(160))
    uneven = ["a"] * 3 + ["b"] * 7
    assert sorted(task_order(0, 10, 1, uneven)) == list(range(10))
    assert task_order(0, 10, 1, uneven) != task_order(0, 10, 2, uneven)


def test_kinds_are_known_only_where_every_task_has_one():
    assert kinds_of([{"question": "?"}, {"question": "!", "kind": "b"}]) is None
    assert kinds_of([]) is None
    assert kinds_of([{"kind": 1}, {"kind": "b"}]) == ["1", "b"]


def _draws(size, seed=0, rates=None):
    curriculum = "none" if rates is None else "pass_rate"
    settings = GRPOSettings(curriculum=curriculum, seed=seed)
    return TaskDraws(settings, [None] * size, RunProgress(pass_rates=dict(rates or {})))


def test_tasks_come_in_the_order_of_the_epochs_however_they_are_drawn():
    draws = _draws(5, seed=3)
    once = draws.draw(4, step=2, first=8, drawn=[])
    assert once == tasks_from(3, 5, 8, 4)
    begun = draws.draw(1, step=2, first=8, drawn=[])
    assert [*begun, *draws.draw(3, step=2, first=8, drawn=begun)] == once


def test_a_curriculum_prefers_tasks_that_are_solved_half_of_the_time():
    draws = _draws(5, rates={str(row): rate for row, rate in enumerate([0.0, 0.1, 0.5, 0.9, 1.0])})
    counts = np.zeros(5)
    for step in range(600):
        counts[draws.draw(1, step=step, first=0, drawn=[])] += 1
    weights = np.array([0.1, 0.36, 1.0, 0.36, 0.1])
    np.testing.assert_allclose(counts / 600, weights / weights.sum(), atol=0.05)


def test_a_curriculum_draws_no_task_twice_while_there_are_others_and_the_same_ones_again():
    def drawn():
        draws = _draws(4, rates={"1": 1.0})
        rows = draws.draw(3, step=7, first=0, drawn=[])
        return [*rows, *draws.draw(3, step=7, first=0, drawn=rows)]

    assert sorted(drawn()[:4]) == [0, 1, 2, 3]
    assert drawn() == drawn()


def test_pass_rates_follow_what_was_sampled_last():
    draws = _draws(5, rates={"0": 1.0})
    draws.rate({0: 0.0, 3: 0.25, 4: -2.0})
    assert draws._progress.pass_rates == {"0": 0.5, "3": 0.25, "4": 0.0}
