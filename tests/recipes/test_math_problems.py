"""Generated word problems, the stories that they are told in, worked solutions and their faults."""

from __future__ import annotations

import itertools
import random
import re
from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mini_agentic_rl.datasets import DatasetError, load_examples, split_overlap
from mini_agentic_rl.recipes.math import ArithmeticDataset
from mini_agentic_rl.recipes.math.stories import LEVELS, STORIES, TRANSFER
from mini_agentic_rl.recipes.math.stories.story import parse
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

NUMBER = re.compile(r"\d+(?:\.\d+)?")
ROWS = list(ArithmeticDataset("train", 200, seed=4))


def operands(row: dict[str, str]) -> tuple[str, ...]:
    return tuple(sorted(NUMBER.findall(row["expression"])))


@pytest.mark.parametrize("split", ["train", "val", "test", "transfer"])
def test_the_calculator_gives_every_answer_in_as_many_operations_as_the_level_says(split: str) -> None:
    for row in ArithmeticDataset(split, 60):
        assert calculate(row["expression"]) == row["answer"]
        assert re.fullmatch(r"\d+(\.\d{1,2})?", row["answer"])
        assert len(re.findall(r"[-+*/]", row["expression"])) == row["difficulty"]


@given(st.integers(0, 1000), st.integers(0, 1000))
@settings(max_examples=4)
def test_neither_a_calculation_nor_a_story_is_in_two_splits_whatever_the_seeds(seed: int, other_seed: int) -> None:
    train = list(ArithmeticDataset("train", 40, seed))
    held_out = [row for split in ("val", "test", "transfer") for row in ArithmeticDataset(split, 12, other_seed)]
    for seen in (operands, lambda row: row["story"]):
        assert not set(map(seen, train)) & set(map(seen, held_out))


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


@pytest.mark.parametrize("arguments", [{"split": "dev"}, {"difficulty": 5}, {"difficulty": ()}, {"size": -1}])
def test_invalid_arguments_are_named(arguments: dict[str, object]) -> None:
    with pytest.raises(DatasetError, match=next(iter(arguments))):
        ArithmeticDataset(**arguments)  # type: ignore[arg-type]  # wrong on purpose


# Stories


def test_every_story_has_an_answer_that_can_be_written_whatever_its_numbers() -> None:
    for story in (*STORIES, *TRANSFER):
        problem = story.tell(random.Random(1), random.Random(1))
        assert re.fullmatch(r"\d+(\.\d{1,2})?", calculate(problem.expression)), problem.question
        stated = set(NUMBER.findall(problem.question)) | set(NUMBER.findall(re.sub(r"{[a-e]}", "", story.expression)))
        assert set(NUMBER.findall(problem.expression)) <= stated, problem.question


def test_the_transfer_stories_share_no_seven_words_in_a_row_and_no_operation_with_the_written_ones() -> None:
    trained = {phrasing for story in STORIES for phrasing in story.phrasings}
    unseen = {phrasing for story in TRANSFER for phrasing in story.phrasings}
    assert {story.level for story in TRANSFER} == set(LEVELS)
    shared = split_overlap(*([re.sub(r"{[a-e]}", "7", one) for one in told] for told in (trained, unseen)), ngram=7)
    assert (shared["same_but_numbers"], shared["with_ngram"]) == (0, 0)
    operation = re.compile(r"\b(average|mean of|percent|perimeter|fence)\b", re.IGNORECASE)
    assert not any(map(operation.search, trained))
    assert any(map(operation.search, unseen))
    wordings = Counter(wording for story in STORIES for wording in story.phrasings)
    assert len(wordings) > 2300
    assert max(wordings.values()) == 1


KIND = "== (a-b)/c | a 20-98, b 2-9, c 3-7 | Subtract, then divide.\n"


def test_a_kind_has_its_wordings_and_numbers_that_come_out() -> None:
    wordings = ["Of {a} eggs {b} break; {c} fill a box. How many boxes?", "{a}, less {b}, shared by {c}: how many?"]
    (story,) = parse(f"# a comment\n\n{KIND}{wordings[0]}\n{wordings[1]}\n", "eggs.txt")
    assert story.phrasings == tuple(wordings)
    assert (story.level, story.expression, story.thought) == (2, "({a}-{b})/{c}", "Subtract, then divide.")
    for seed in range(200):
        a, b, c = story.draw(random.Random(seed))
        assert (20 <= a <= 98, 2 <= b <= 9, 3 <= c <= 7) == (True, True, True)
        assert (a - b) % c == 0
        assert (a - b) // c > 1


def test_prices_have_two_decimal_places_and_counts_are_whole() -> None:
    (story,) = parse("== a/b*c | a 20-90 by 10, b 3-9, c 1.05-4.95 | Fill.\n{a}, {b} to a box, {c} a box?\n", "x.txt")
    drawn = [story.draw(random.Random(seed)) for seed in range(100)]
    assert all(eggs % size == 0 and re.fullmatch(r"\d\.\d\d", str(price)) for eggs, size, price in drawn)
    assert {eggs % 10 for eggs, _, _ in drawn} == {0}
    (story,) = parse("== a/b | a 4.00-99.00, b 1.05-4.95 | Divide.\n{a} dollars at {b} each: how many?\n", "x.txt")
    assert all(paid % price == 0 for paid, price in (story.draw(random.Random(seed)) for seed in range(20)))


def test_a_wording_may_have_a_number_that_is_no_operand_and_one_of_several_things() -> None:
    (story,) = parse(
        "== a+b | a 11-98, b 11-98, c 3-9 | Add. | things: pens, tin soldiers\n{a} {item}, {b} more, at {c}?\n", "x.txt"
    )
    problems = [story.tell(random.Random(seed), random.Random(seed)) for seed in range(30)]
    assert {len(re.findall(r"\d+", problem.expression)) for problem in problems} == {2}
    assert {problem.question.split(" ", 1)[1][:4] for problem in problems} == {"pens", "tin "}


@pytest.mark.parametrize(
    ("text", "line", "word"),
    [
        (f"{KIND}Only {{a}} and {{b}}?\n", 2, "wording"),
        (f"{KIND}{{a}}, {{b}}, {{c}} and {{item}}?\n", 2, "wording"),
        ("A wording without {a} kind?\n", 1, "kind"),
        ("== a+b | a 2-9, b x-7 | Add.\n{a} and {b}?\n", 2, "range"),
        ("== a+b | b 2-9, a 3-7 | Add.\n{a} and {b}?\n", 2, "order"),
        ("== a+b a 2-9\n", 1, "=="),
    ],
)
def test_an_invalid_line_is_named(text: str, line: int, word: str) -> None:
    with pytest.raises(ValueError, match=rf"x.txt, line {line}: .*{word}"):
        list(parse(text, "x.txt"))


def test_ranges_without_fitting_numbers_are_refused(monkeypatch) -> None:
    monkeypatch.setattr("mini_agentic_rl.recipes.math.stories.story._MAX_DRAWS", 100)
    (story,) = parse("== a-b | a 2-9, b 20-30 | Subtract.\n{a} less {b}?\n", "x.txt")
    with pytest.raises(ValueError, match="a-b"):
        story.draw(random.Random(0))


# Worked solutions and faults


def test_every_line_of_a_worked_solution_is_a_right_calculation() -> None:
    for row in ROWS:
        solution = worked_solution(row)
        calculations = equations(solution.text)
        assert len(calculations) == len(operations(row["expression"]))
        assert all(equation.right for equation in calculations)
        assert is_correct(solution.text, calculate(row["expression"]))
        assert has_answer_line(solution.text)


def test_operations_are_in_the_order_of_computation_and_each_is_done_once() -> None:
    assert working(operations("(12+30)*2-8/4")) == ("12 + 30 = 42", "42 * 2 = 84", "8 / 4 = 2", "84 - 2 = 82")
    assert results(operations("(12+30)*2"), {0: Fraction(40)}) == [40, 80]
    assert working(operations("46+46*2+46*2")) == ("46 * 2 = 92", "46 + 92 = 138", "138 + 92 = 230")
    told = "7 hens, 30 cows, 4 more hens than yesterday"
    assert working(as_told(operations("30+7"), told)) == ("7 + 30 = 37",)
    assert working(as_told(operations("30-7"), told)) == ("30 - 7 = 23",)
    assert working(as_told(operations("30*(7+4)"), told)) == ("7 + 4 = 11", "11 * 30 = 330")
    with pytest.raises(ValueError, match="no expression over numbers"):
        operations("__import__('os')")


def test_a_solution_without_an_expression_is_read_from_the_text() -> None:
    text = "Half of 48 is 48/2 = <<48/2=24>>24.\n\nSo 24.\n#### 24"
    assert worked_solution({"answer": "24", "solution": text}).text == "Half of 48 is 48/2 = 24.\nSo 24.\nAnswer: 24"
    assert worked_solution({"answer": "24"}).text == "Answer: 24"


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_a_fault_is_what_it_is_called(name: str) -> None:
    count = 0
    for row, other in itertools.pairwise(ROWS):
        right = worked_solution(row)
        text = CORRUPTIONS[name](random.Random(row["id"]), Case(row, right, worked_solution(other)))
        if text is None or text == right.text:
            continue
        count += 1
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
    assert count > 50


def test_every_fault_comes_up_and_a_pair_depends_on_its_task_and_the_seed_alone() -> None:
    pairs = load_examples("arithmetic", "preference", max_samples=400, seed=1)
    tasks = load_examples("arithmetic", "rl", max_samples=400, seed=1)
    assert set(Counter(pair["fault"] for pair in pairs)) == set(CORRUPTIONS)
    for pair, task in zip(pairs, tasks, strict=True):
        chosen, rejected = pair["chosen"][0]["content"], pair["rejected"][0]["content"]
        assert is_correct(chosen, task["ground_truth"])
        assert has_answer_line(chosen)
        assert not (is_correct(rejected, task["ground_truth"]) and has_answer_line(rejected))
    assert load_examples("arithmetic", "preference", max_samples=5, seed=1)[:4] == pairs[:4]
    others = load_examples("arithmetic", "preference", max_samples=50, seed=2)
    assert [pair["rejected"] for pair in others] != [pair["rejected"] for pair in pairs[:50]]
    faults = Counter(pair["fault"] for pair in load_examples("gsm_symbolic", "preference", max_samples=60))
    assert {"wrong_final_answer", "calculation_slip", "off_topic", "no_answer", "evasive"} <= set(faults)
