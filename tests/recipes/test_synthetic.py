"""Worked solutions are right, faulty ones have the fault that they are named for, and every fault comes up."""

from __future__ import annotations

import random
from collections import Counter
from fractions import Fraction
from itertools import pairwise

import pytest

from mini_agentic_rl.datasets import load_examples
from mini_agentic_rl.recipes.math import ArithmeticDataset
from mini_agentic_rl.recipes.math.worked import (
    CORRUPTIONS,
    UNFIT,
    WRONG,
    Case,
    as_told,
    operations,
    results,
    worked_solution,
    working,
)
from mini_agentic_rl.rewards import has_answer_line, is_correct
from mini_agentic_rl.rewards.format import equations
from mini_agentic_rl.tools import calculate

ROWS = list(ArithmeticDataset("train", 200, seed=4))


def test_every_line_of_a_worked_solution_is_a_right_calculation() -> None:
    for row in ROWS:
        solution = worked_solution(row)
        calculations = equations(solution.text)
        assert len(calculations) == len(operations(row["expression"]))
        assert all(equation.right for equation in calculations)
        assert is_correct(solution.text, calculate(row["expression"]))
        assert has_answer_line(solution.text)


def test_operations_are_in_the_order_of_computation() -> None:
    assert working(operations("(12+30)*2-8/4")) == ("12 + 30 = 42", "42 * 2 = 84", "8 / 4 = 2", "84 - 2 = 82")
    assert results(operations("(12+30)*2"), {0: Fraction(40)}) == [40, 80]
    with pytest.raises(ValueError, match="no expression over numbers"):
        operations("__import__('os')")


def test_a_result_that_is_used_twice_is_computed_once() -> None:
    assert working(operations("46+46*2+46*2")) == ("46 * 2 = 92", "46 + 92 = 138", "138 + 92 = 230")


def test_sides_that_can_be_swapped_stand_as_results_and_then_as_numbers_are_told() -> None:
    told = "7 hens, 30 cows, 4 more hens than yesterday"
    assert working(as_told(operations("30+7"), told)) == ("7 + 30 = 37",)
    assert working(as_told(operations("30-7"), told)) == ("30 - 7 = 23",)
    assert working(as_told(operations("30*(7+4)"), told)) == ("7 + 4 = 11", "11 * 30 = 330")


def test_a_solution_without_an_expression_is_read_from_the_text() -> None:
    text = "Half of 48 is 48/2 = <<48/2=24>>24.\n\nSo 24.\n#### 24"
    assert worked_solution({"answer": "24", "solution": text}).text == "Half of 48 is 48/2 = 24.\nSo 24.\nAnswer: 24"
    assert worked_solution({"answer": "24"}).text == "Answer: 24"


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_a_fault_is_what_it_is_called(name: str) -> None:
    found = 0
    for row, other in pairwise(ROWS):
        right = worked_solution(row)
        text = CORRUPTIONS[name](random.Random(row["id"]), Case(row, right, worked_solution(other)))
        if text is None or text == right.text:
            continue
        found += 1
        lines, calculations = text.splitlines(), equations(text)
        if name in WRONG and name != "off_topic":
            assert not is_correct(text, row["answer"]) or text.endswith(f"Answer: {row['answer']}")
        if name in ("wrong_operation", "misread_number", "unfinished", "wrong_final_answer"):
            assert all(equation.right for equation in calculations)
        if name == "calculation_slip":
            assert sum(not equation.right for equation in calculations) == 1
        if name == "wrong_final_answer":
            assert tuple(lines[:-1]) == right.lines
        if name == "unfinished":
            assert len(calculations) < len(operations(row["expression"]))
        if name == "contradictory":
            assert text.count("Answer:") == 2
        if name in UNFIT:
            assert not has_answer_line(text)
    assert found > 50


def test_every_fault_comes_up_and_every_pair_can_be_checked() -> None:
    pairs = load_examples("arithmetic", "preference", max_samples=400)
    tasks = load_examples("arithmetic", "rl", max_samples=400)
    assert set(Counter(pair["fault"] for pair in pairs)) == set(CORRUPTIONS)
    for pair, task in zip(pairs, tasks, strict=True):
        chosen, rejected = pair["chosen"][0]["content"], pair["rejected"][0]["content"]
        assert is_correct(chosen, task["ground_truth"])
        assert has_answer_line(chosen)
        assert not (is_correct(rejected, task["ground_truth"]) and has_answer_line(rejected))


def test_word_problems_with_a_worked_text_get_faults_too() -> None:
    faults = Counter(pair["fault"] for pair in load_examples("gsm_symbolic", "preference", max_samples=120))
    assert {"wrong_final_answer", "calculation_slip", "off_topic", "no_answer", "evasive"} <= set(faults)


def test_a_pair_depends_on_its_task_and_the_seed_alone() -> None:
    few, many = (load_examples("arithmetic", "preference", max_samples=size, seed=1) for size in (5, 50))
    assert few[:4] == many[:4]
    assert [pair["rejected"] for pair in many] != [
        pair["rejected"] for pair in load_examples("arithmetic", "preference", max_samples=50, seed=2)
    ]
