"""Kinds of tasks take turns within a step."""

from __future__ import annotations

from collections import Counter

from mini_agentic_rl.algorithm.seeds import kinds_of, task_order, tasks_of_step


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
