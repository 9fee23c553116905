"""Generated problems are right, reproducible, large, and never shared between splits."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mini_agentic_rl.calculator import calculate
from mini_agentic_rl.datasets import ArithmeticDataset, DatasetError
from mini_agentic_rl.datasets.arithmetic import LEVELS, split_of_operands
from mini_agentic_rl.datasets.stories import STORIES


def operands(row: dict[str, str]) -> tuple[str, ...]:
    return tuple(sorted(re.findall(r"\d+(?:\.\d+)?", row["expression"])))


@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_the_calculator_gives_every_answer(split: str) -> None:
    for row in ArithmeticDataset(split, 800):
        assert calculate(row["expression"]) == row["answer"]
        assert re.fullmatch(r"\d{2,}(\.\d{1,2})?", row["answer"])


@given(st.integers(0, 1000), st.integers(0, 1000))
def test_no_calculation_is_in_two_splits_whatever_the_seeds(seed: int, other_seed: int) -> None:
    train = {operands(row) for row in ArithmeticDataset("train", 40, seed)}
    held_out = {operands(row) for split in ("val", "test") for row in ArithmeticDataset(split, 20, other_seed)}
    assert not train & held_out


def test_the_order_of_the_operands_does_not_decide_the_split() -> None:
    assert split_of_operands((12, 345)) == split_of_operands((345, 12))


def test_equal_arguments_give_equal_rows_and_smaller_sets_begin_larger_ones() -> None:
    rows = list(ArithmeticDataset("train", 60, seed=3))
    assert rows == list(ArithmeticDataset("train", 60, seed=3))
    assert rows[:25] == list(ArithmeticDataset("train", 25, seed=3))
    assert rows != list(ArithmeticDataset("train", 60, seed=4))


def test_questions_are_short_different_and_hold_every_number() -> None:
    rows = ArithmeticDataset("train", 2000)
    assert len({row["question"] for row in rows}) == len({row["id"] for row in rows}) == 2000
    for row in rows:
        assert 15 <= len(row["question"].split()) <= 45, row["question"]
        shown = re.findall(r"\d+(?:\.\d+)?", row["question"])
        assert sorted(shown) == sorted(re.findall(r"\d+(?:\.\d+)?", row["expression"])), row["question"]


def test_all_stories_of_a_level_turn_up_and_levels_take_turns() -> None:
    assert len(STORIES) >= 12
    assert all(sum(story.level == level for story in STORIES) >= 3 for level in LEVELS)
    rows = ArithmeticDataset("train", 400)
    assert [row["difficulty"] for row in rows[:8]] == [1, 2, 3, 4, 1, 2, 3, 4]
    assert len({(row["difficulty"], row["thought"], len(operands(row))) for row in rows}) >= 12
    assert {row["difficulty"] for row in ArithmeticDataset("val", 20, difficulty=(2, 4))} == {2, 4}


@pytest.mark.parametrize(("level", "operations"), [(1, 1), (2, 1), (3, 2), (4, 3)])
def test_a_level_says_how_many_operations_there_are(level: int, operations: int) -> None:
    for row in ArithmeticDataset("test", 30, difficulty=level):
        assert len(re.findall(r"[-+*/]", row["expression"])) == operations


@pytest.mark.parametrize("arguments", [{"split": "dev"}, {"difficulty": 5}, {"difficulty": ()}, {"size": -1}])
def test_arguments_that_make_no_sense_are_named(arguments: dict[str, object]) -> None:
    with pytest.raises(DatasetError, match=next(iter(arguments))):
        ArithmeticDataset(**arguments)  # type: ignore[arg-type]  # wrong on purpose
