"""Tasks with turns: their rows, their experts, and what they make of good and bad answers."""

from __future__ import annotations

import itertools
import json
import random
import re
from collections import Counter
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mini_agentic_rl.datasets import DatasetError, divide_examples, find_family, load_examples, load_task_dataset
from mini_agentic_rl.environments.episode import MAX_ANSWER, ToolEpisode, last_line, number_of, plain
from mini_agentic_rl.recipes.games.countdown import value_of
from mini_agentic_rl.recipes.retrieval.retrieval import Index, world
from mini_agentic_rl.recipes.units.stories import HELD_OUT_STUFF, STORIES, STUFF, TRANSFER_STORIES
from mini_agentic_rl.recipes.units.units import HELD_OUT_UNITS, TRANSFER_UNITS, UNITS
from mini_agentic_rl.rewards import in_ascii_numbers
from recipes.playing import calls, says

SPLITS = ("train", "val", "test", "transfer")
FAMILIES = ("countdown", "guess", "retrieval", "units")


def score(name: str, task: Any, *messages: dict[str, Any]) -> dict[str, float]:
    episode = find_family(name).start(task)
    for message in messages:
        episode.receive(message)
    return episode.scores()


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("split", SPLITS)
def test_the_expert_earns_the_whole_reward_at_every_level(name: str, split: str) -> None:
    family = find_family(name)
    rows = family.tasks(split, 48)
    assert [row["difficulty"] for row in rows[:8]] == [1, 2, 3, 4] * 2
    for row in rows:
        episode = family.start(row)
        turns = next(turn for turn in itertools.count(1) if not episode.receive(episode.expert()))
        assert turns <= family.max_turns
        assert episode.scores()["reward"] == 1.0 or (name, split, row["difficulty"] < 3) == ("units", "train", True)


@pytest.mark.parametrize("name", FAMILIES)
def test_rows_are_reproducible_different_and_in_one_split_only(name: str) -> None:
    rows = list(find_family(name).tasks("train", 80, 3))
    assert rows == list(find_family(name).tasks("train", 80, 3))
    assert list(find_family(name).tasks("train", 20, 3)) == rows[:20]
    assert len({row["id"] for row in rows}) == 80
    assert rows != list(find_family(name).tasks("train", 80, 4))
    assert json.loads(json.dumps(rows)) == rows  # they go through a store
    assert {row["difficulty"] for row in load_task_dataset(f"{name}:2,3", "val", 8)} == {2, 3}
    parts = {
        split: {
            f"{row['question']} {row['answer']}" for seed in (0, 1) for row in find_family(name).tasks(split, 60, seed)
        }
        for split in SPLITS
    }
    for one, other in itertools.combinations(SPLITS, 2):
        assert not parts[one] & parts[other]


@pytest.mark.parametrize("name", FAMILIES)
def test_examples_are_the_experts_conversation_and_the_prompt(name: str) -> None:
    (example,) = load_examples(name, "sft", max_samples=1)
    (task,) = load_examples(name, "rl", max_samples=1)
    family = find_family(name)
    assert example["messages"][:2] == task["prompt"] == family.opening(task)
    assert example["messages"][-1]["role"] == "assistant"
    assert example.get("tools", []) == task.get("tools", []) == list(family.tools)
    assert task["ground_truth"] == task["answer"]
    kept, held_out = divide_examples(load_examples(f"{name}:1", "sft", max_samples=30), 0.2)
    assert kept
    assert held_out
    with pytest.raises(DatasetError, match="forms sft and rl, not preference"):
        load_examples(name, "preference", max_samples=1)


@pytest.mark.parametrize("name", FAMILIES)
def test_any_reply_is_answered_and_scored_between_0_and_1_and_a_task_without_fields_is_refused(name: str) -> None:
    rng = random.Random(0)
    names = ["convert", "calculator", "search", "read", "submit", ""]
    texts = ["", "Answer: ", "Answer: 1\nAnswer: 1", "Guess: 5", "Answer: 1/0", "\x00", "Guess: -5"]
    texts += ["Guess: " + "9" * 5000, "Answer: " + "(" * 90, "Answer: 1" + "+1" * 3000, "Answer: ١٢", "Guess: 3.5"]
    arguments = ["", "{}", "[]", "null", '{"measure": null}', '{"measure": "1 foot"}', '{"query": "a b"}']
    arguments += ['{"document": -1}', '{"document": 99999999999999999999}', '{"expression": "1/0"}', "[" * 2000]
    for row in find_family(name).tasks("train", 8, 0):
        episode = find_family(name).start(row)
        for _ in range(40):
            hostile = says(rng.choice(texts)) if rng.random() < 0.5 else calls(rng.choice(names), rng.choice(arguments))
            for reply in episode.receive(hostile):
                assert reply["role"] in ("user", "tool")
                assert isinstance(reply["content"], str)
        assert all(value >= 0.0 for value in episode.scores().values())
        assert episode.scores()["reward"] < 1.0
    with pytest.raises(ValueError, match=f"a task of {name} needs"):
        find_family(name).start({"question": "?"})


def test_a_split_or_level_that_there_is_not_is_refused() -> None:
    with pytest.raises(DatasetError, match="`split` must be one of train, val, test, transfer"):
        find_family("guess").tasks("all", 1, 0)
    with pytest.raises(DatasetError, match="levels are 1, 2, 3, 4"):
        find_family("guess:7").tasks("train", 1, 0)
    with pytest.raises(DatasetError, match="guess:1,2"):
        find_family("guess:easy").tasks("train", 1, 0)
    with pytest.raises(DatasetError, match="no further test task of guess found"):
        find_family("guess:1").tasks("test", 1000, 0)


def test_an_expression_has_a_value_only_by_the_rules() -> None:
    valid = {"3*7+12": 33, "(12-7)/3": Fraction(5, 3), "7": 7}
    for expression, value in valid.items():
        assert value_of(expression, [3, 7, 12]) == value
    invalid = ("7*7", "3*7+11", "3/(7-7)", "3**7", "-3", "3//7", "37", "3.0", "__import__('os')", "(3", "", "03")
    for expression in invalid:
        assert value_of(expression, [3, 7, 12]) is None


def test_countdown_rewards_the_target_and_a_little_a_valid_try() -> None:
    task = {"numbers": [3, 7, 12], "target": 33}
    assert score("countdown", task, says("3*7 = 21\nAnswer: 3*7+12"))["reward"] == 1.0
    assert score("countdown", task, says("Answer: 3*7"))["reward"] == 0.1
    for bad in ("33", "Answer: 33", "Answer: 3*7+12 = 33", "Answer: 3*7+12\nDone.", "Answer: 3\nAnswer: 3*7+12"):
        assert score("countdown", task, says(bad))["reward"] == 0.0
    for text in ("It is 3*7+12 = 33.", "Answer: 3*7+12\nDone.", "Answer: 3\nAnswer: (3*7) + 12"):
        assert score("countdown", task, says(text))["lenient"] == 1.0
    for text in ("The answer is 33.", "Answer: 33", "3*7+12 = 33, or 12+7", ""):
        assert score("countdown", task, says(text))["lenient"] == 0.0


def test_guessing_narrows_the_range_and_costs_a_guess_where_it_is_none() -> None:
    task = {"answer": "6", "low": 1, "high": 7, "tries": 3}
    game = find_family("guess").start(task)
    assert [reply["content"] for reply in game.receive(says("Guess: 4"))] == ["higher"]
    assert "Guess: 5" in game.receive(says("five"))[0]["content"]
    assert game.receive(says("Guess: 7")) == []
    scores = game.scores()
    assert (scores["guesses"], scores["invalid"]) == (3.0, 1.0)
    assert 0.2 < scores["reward"] < 0.4
    assert score("guess", task, says("1 to 7\nGuess: 6"))["reward"] == 1.0
    assert score("guess", task, says("Guess: 99"))["reward"] == 0.0


def test_units_need_both_tools_and_a_number_alone() -> None:
    task = {"answer": "10.98", "expression": "3.66*3", "measures": ["12 feet"]}
    right = [calls("convert", '{"measure": "12 feet"}'), calls("calculator", '{"expression": "3.66*3"}')]
    scores = score("units", task, *right, says("Answer: 10.98 metres"))
    assert (scores["reward"], scores["convert"], scores["calculator"]) == (1.0, 1.0, 1.0)
    for wrong in ("Answer: 11", "Answer: 10.98 or 12", "Answer: about 10.98", "10.98", "Answer: 10.98\n</end>"):
        assert score("units", task, *right, says(wrong))["reward"] == 0.0


def test_a_wrong_answer_in_units_earns_a_tenth_if_it_is_the_last_result_of_the_calculator() -> None:
    task = {"answer": "10.98", "expression": "3.66*3", "measures": ["12 feet"]}
    measure = calls("convert", '{"measure": "12 feet"}')
    product = calls("calculator", '{"expression": "12*3"}')
    assert score("units", task, measure, product, says("Answer: 36"))["reward"] == 0.1
    for others in ([measure, product, says("Answer: 3.66")], [measure, says("Answer: 3.66")], [product, measure]):
        assert score("units", task, *others)["reward"] == 0.0


def test_a_measure_is_converted_or_the_reason_is_given() -> None:
    wrong = 'error: write a number and a unit, as "12 feet"'
    results = {"12 feet": "3.66 metres", " 1 Foot ": "0.305 metres", "2.5 nautical miles": "4.63 kilometres"}
    results |= {"3 parsecs": "error: no unit named parsecs", "feet": wrong, "twelve feet": wrong, "12": wrong}
    results |= {"3 more feet": "0.915 metres", "3 feet yards": "error: no unit named feet yards"}
    results |= {"3 and 5 feet": "error: no unit named and 5 feet", "3 5 feet": "error: no unit named 5 feet"}
    for measure, result in results.items():
        call = calls("convert", json.dumps({"measure": measure}))
        (reply,) = find_family("units").start({"answer": "1"}).receive(call)
        assert reply["content"] == result


def test_held_out_units_numbers_and_wordings_are_never_trained() -> None:
    assert not {unit.name for unit in UNITS} & {unit.name for unit in (*HELD_OUT_UNITS, *TRANSFER_UNITS)}
    stories = (*STORIES, *TRANSFER_STORIES)
    wordings = [wording for story in stories for wording in (*story.wordings, *story.held_out)]
    assert len(set(wordings)) == len(wordings)
    stuff = [one.stuff for by_base in (STUFF, HELD_OUT_STUFF) for kinds in by_base.values() for one in kinds]
    assert len(set(stuff)) == len(stuff)
    assert all(Fraction(unit.factor) > 0 for unit in (*UNITS, *HELD_OUT_UNITS, *TRANSFER_UNITS))
    for split in ("test", "transfer"):
        measured = {
            part.partition(" ")[2] for row in find_family("units").tasks(split, 200, 0) for part in row["measures"]
        }
        assert not measured & {name for unit in UNITS for name in (unit.name, unit.plural)}
    numbers = {
        split: {
            (row["measures"][0].split()[0], re.split(r"[*/+-]", row["expression"])[-1])
            for row in find_family("units:1,2").tasks(split, 400)
        }
        for split in ("train", "test")
    }
    assert not numbers["train"] & numbers["test"]


def test_the_two_kinds_of_the_main_job_come_equally_often() -> None:
    kinds = Counter(row["kind"] for row in find_family("units:1,2").tasks("train", 400))
    assert kinds == {"{u}+{v}": 200, "{u}+{v}+{w}": 200}
    assert len({row["kind"] for row in find_family("units").tasks("train", 400, 0)}) == 7


def test_the_main_job_shows_right_sums_of_centimetres_and_metres_only() -> None:
    family = find_family("units:1,2")
    rows = family.tasks("train", 400)
    demonstrations = [family.demonstration(row) for row in rows]
    right = [
        shown[-1]["content"] == f"Answer: {row['answer']}" for shown, row in zip(demonstrations, rows, strict=True)
    ]
    assert 0.35 < sum(right) / len(right) < 0.45
    used = [[message["tool_calls"][0] for message in shown if message.get("tool_calls")] for shown in demonstrations]
    for shown, row, is_right in zip(used, rows, right, strict=True):
        assert is_right == (" centimetres" in row["question"] or " metres" in row["question"])
        assert len(shown) == (len(row["measures"]) + 1 if is_right else 2)
    others = find_family("units:3,4")
    for row in others.tasks("train", 100):
        assert others.demonstration(row)[-1]["content"] == f"Answer: {row['answer']}"


def test_failed_calls_are_counted() -> None:
    row = find_family("units:1").tasks("train", 1, 0)[0]
    conversions = [calls("convert", json.dumps({"measure": measure})) for measure in row["measures"]]
    right = (
        *conversions,
        calls("calculator", json.dumps({"expression": row["expression"]})),
        says(f"Answer: {row['answer']}"),
    )
    assert score("units", row, *right)["failed_calls"] == 0.0
    scores = score("units", row, calls("convert", json.dumps({"measure": "23 years"})), *right)
    assert (scores["reward"], scores["calls"], scores["failed_calls"]) == (1.0, 3.0, 1.0)


def test_documents_are_found_by_their_words_and_read_by_their_number() -> None:
    index = Index(["a red fox", "a blue fox runs", "the sea"])
    assert index.search("blue FOX", 3) == [1, 0]
    assert index.search("whale", 3) == []
    there = world()
    names = [title for title, _ in there.documents]
    assert len(set(names)) == len(names) == 3400
    row = find_family("retrieval:1").tasks("train", 1, 0)[0]
    episode = find_family("retrieval").start(row)
    (found,) = episode.receive(calls("search", json.dumps({"query": row["searches"][0]})))
    number = int(found["content"].partition(":")[0])
    (text,) = episode.receive(calls("read", json.dumps({"document": number})))
    assert str(row["answer"]) in text["content"]
    assert str(row["answer"]) not in found["content"]  # what a search shows is not enough
    episode.receive(says(f"Answer: {row['answer'].upper()}."))
    assert episode.scores()["reward"] == 1.0


# Readers of an answer: any text is read or refused


NUMBERS = st.lists(st.integers(1, 99), min_size=2, max_size=6)
NEARLY = st.text("0123456789+-*/()., \n\t_eEjJxXaif%~^&|<>=١½－", max_size=120) | st.text(max_size=300)


@st.composite
def expressions(draw: st.DrawFn) -> tuple[str, Fraction | None, list[int]]:
    """An expression over all of some numbers, its value, and the numbers."""
    numbers = draw(NUMBERS)
    parts: list[tuple[str, Fraction | None]] = [(str(number), Fraction(number)) for number in numbers]
    while len(parts) > 1:
        (one, left), (other, right) = parts.pop(), parts.pop()
        symbol = draw(st.sampled_from("+-*/"))
        value = None
        if left is not None and right is not None and (symbol != "/" or right):
            value = {"+": left.__add__, "-": left.__sub__, "*": left.__mul__, "/": left.__truediv__}[symbol](right)
        parts.insert(draw(st.integers(0, len(parts))), (f"({one}{symbol}{other})", value))
    return parts[0][0], parts[0][1], numbers


@given(expressions())
def test_an_expression_has_its_exact_value(drawn: tuple[str, Fraction | None, list[int]]) -> None:
    text, value, numbers = drawn
    assert value_of(text, numbers) == value
    assert value_of(text, numbers[1:]) is None  # one more number than there is


@given(NEARLY, NUMBERS)
def test_any_text_has_a_value_or_none(text: str, numbers: list[int]) -> None:
    value = value_of(text, numbers)
    assert value is None or isinstance(value, Fraction)


@given(NEARLY)
@settings(max_examples=300)
def test_any_text_is_a_number_or_none(text: str) -> None:
    said = number_of(text)
    if said is not None:
        assert text.isascii() or said.isascii()
        assert len(said) <= MAX_ANSWER
        assert abs(Fraction(said)) < 10**200
        assert in_ascii_numbers(text).replace(",", "").startswith(said)
    assert plain(plain(text)) == plain(text) or plain(text).endswith(".")  # one full stop at the end is no part of it


@given(st.lists(NEARLY | NEARLY.map(lambda text: f"Answer: {text}"), max_size=4).map("\n".join))
def test_an_answer_is_the_end_of_what_was_said(text: str) -> None:
    found = last_line({"role": "assistant", "content": text})
    if found is not None:
        assert 0 < len(found) <= MAX_ANSWER
        assert "\n" not in found
        assert text.rstrip("\n").rstrip().endswith(found)


class Echo(ToolEpisode):
    """Says back what it is told."""

    def is_right(self, answer: str) -> bool:
        return True

    def expert(self) -> dict[str, object]:
        return {}


@pytest.mark.parametrize("arguments", ['{"a": "\\ud800"}', '{"a": 1e999}', None, 5, {"a": "x"}, "[" * 5000])
def test_the_result_of_a_tool_can_be_sent_whatever_it_was_given(arguments: object) -> None:
    episode = Echo({"echo": ("a", lambda text: text)})
    for name in ("echo", "\ud800", None):
        call = {"id": "c", "type": "function", "function": {"name": name, "arguments": arguments}}
        (reply,) = episode.receive({"role": "assistant", "content": None, "tool_calls": [call]})
        assert isinstance(reply["content"], str)
        reply["content"].encode()
