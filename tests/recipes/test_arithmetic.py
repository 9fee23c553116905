"""Generated problems are right, reproducible, and share neither numbers nor stories between splits."""

from __future__ import annotations

import itertools
import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mini_agentic_rl.datasets import DatasetError, split_overlap
from mini_agentic_rl.recipes.math import ArithmeticDataset
from mini_agentic_rl.recipes.math.arithmetic import split_of_calculation
from mini_agentic_rl.recipes.math.stories import LEVELS, STORIES, TRANSFER
from mini_agentic_rl.tools import calculate

NUMBER = re.compile(r"\d+(?:\.\d+)?")


def operands(row: dict[str, str]) -> tuple[str, ...]:
    return tuple(sorted(NUMBER.findall(row["expression"])))


@pytest.mark.parametrize("split", ["train", "val", "test", "transfer"])
def test_the_calculator_gives_every_answer(split: str) -> None:
    for row in ArithmeticDataset(split, 100):
        assert calculate(row["expression"]) == row["answer"]
        assert re.fullmatch(r"\d+(\.\d{1,2})?", row["answer"])


@given(st.integers(0, 1000), st.integers(0, 1000))
@settings(max_examples=6)
def test_neither_a_calculation_nor_a_story_is_in_two_splits_whatever_the_seeds(seed: int, other_seed: int) -> None:
    train = list(ArithmeticDataset("train", 40, seed))
    held_out = [row for split in ("val", "test", "transfer") for row in ArithmeticDataset(split, 12, other_seed)]
    for seen in (operands, lambda row: row["story"]):
        assert not set(map(seen, train)) & set(map(seen, held_out))


def test_the_transfer_stories_share_no_seven_words_in_a_row_with_the_written_ones() -> None:
    trained = {phrasing for story in STORIES for phrasing in story.phrasings}
    unseen = {phrasing for story in TRANSFER for phrasing in story.phrasings}
    assert {story.level for story in TRANSFER} == set(LEVELS)
    shared = split_overlap(*([re.sub(r"{[a-e]}", "7", one) for one in told] for told in (trained, unseen)), ngram=7)
    assert (shared["same_but_numbers"], shared["with_ngram"]) == (0, 0)


def test_a_written_story_has_an_answer_that_can_be_written_whatever_its_numbers() -> None:
    for story, seed in itertools.product([*STORIES, *TRANSFER], range(2)):
        problem = story.tell(random.Random(seed), random.Random(seed))
        assert re.fullmatch(r"\d+(\.\d{1,2})?", calculate(problem.expression)), problem.question
        stated = set(NUMBER.findall(problem.question)) | set(NUMBER.findall(re.sub(r"{[a-e]}", "", story.expression)))
        assert set(NUMBER.findall(problem.expression)) <= stated, problem.question


def test_the_order_of_the_operands_does_not_decide_the_split() -> None:
    assert split_of_calculation("12*345") == split_of_calculation("345/12")


def test_equal_arguments_give_equal_rows_and_smaller_sets_begin_larger_ones() -> None:
    rows = list(ArithmeticDataset("train", 60, seed=3))
    assert rows == list(ArithmeticDataset("train", 60, seed=3))
    assert rows[:25] == list(ArithmeticDataset("train", 25, seed=3))
    assert rows != list(ArithmeticDataset("train", 60, seed=4))


def test_questions_are_short_different_and_hold_every_number() -> None:
    rows = ArithmeticDataset("train", 400)
    assert [row["difficulty"] for row in rows[:8]] == [1, 2, 3, 4, 1, 2, 3, 4]
    assert len({row["question"] for row in rows}) == len({row["id"] for row in rows}) == 400
    said = {"2", "3", "4", "5", "7", "10", "12", "24", "60", "100", "1000"}  # twice, a third, days of a week, ...
    for row in rows:
        assert 2 <= len(row["question"].split()) <= 60, row["question"]
        assert set(NUMBER.findall(row["expression"])) <= set(NUMBER.findall(row["question"])) | said, row["question"]
        assert "{" not in row["question"]
        assert "then then" not in row["question"]


@pytest.mark.parametrize("split", ["test", "transfer"])
def test_a_level_says_how_many_operations_there_are(split: str) -> None:
    for row in ArithmeticDataset(split, 60, difficulty=LEVELS):
        assert len(re.findall(r"[-+*/]", row["expression"])) == row["difficulty"]


@pytest.mark.parametrize("arguments", [{"split": "dev"}, {"difficulty": 5}, {"difficulty": ()}, {"size": -1}])
def test_arguments_that_make_no_sense_are_named(arguments: dict[str, object]) -> None:
    with pytest.raises(DatasetError, match=next(iter(arguments))):
        ArithmeticDataset(**arguments)  # type: ignore[arg-type]  # wrong on purpose
