"""The invented medical world: the same everywhere, plainly marked, and every question has an answer."""

from __future__ import annotations

import json
import sqlite3

import pytest

from mini_agentic_rl.datasets import DatasetError, load_examples, load_task_dataset
from mini_agentic_rl.datasets.rows import digest
from mini_agentic_rl.recipes.sql.data import (
    LEVELS,
    MAX_ROWS,
    TEMPLATES,
    MedicalQuestions,
    connect_in_memory,
    medical_database,
)


@pytest.fixture(scope="module")
def database():
    connection = connect_in_memory()
    yield connection
    connection.close()


def test_the_database_is_the_same_on_every_machine_and_its_file_is_made_once(tmp_path, database):
    content = "\n".join(database.iterdump())
    assert digest(content) == "8fb29405923dfc8be5f1f0c81e699419"
    path = medical_database(tmp_path)
    with sqlite3.connect(path) as connection:
        assert list(connection.iterdump()) == list(database.iterdump())
    connection.close()
    made = path.stat().st_mtime_ns
    assert medical_database(tmp_path) == path
    assert path.stat().st_mtime_ns == made
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_the_twin_has_the_same_names_and_other_facts(database):
    twin = connect_in_memory(twin=True)
    for table in ("drug", "disease", "symptom"):
        query = f"SELECT id, name, name_zh FROM {table}"
        assert twin.execute(query).fetchall() == database.execute(query).fetchall()
    rows = list(MedicalQuestions("test", 100))
    same = sum(
        sorted(map(repr, twin.execute(row["sql"]).fetchall())) == sorted(map(repr, map(tuple, row["rows"])))
        for row in rows
    )
    twin.close()
    assert same < len(rows) / 5


@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_every_gold_query_runs_and_says_something(database, split):
    rows = MedicalQuestions(split, 160)
    assert len({row["question"] for row in rows}) == len({row["id"] for row in rows}) == 160
    for row in rows:
        found = database.execute(row["sql"]).fetchall()
        assert [list(values) for values in found] == row["rows"]
        assert 1 <= len(found) <= MAX_ROWS
        assert all(cell is not None for values in found for cell in values)
        assert found != [(0,)]
        assert row["answer"]
        assert "{" not in row["question"] + row["sql"]


def test_every_template_is_asked_in_both_languages():
    asked = {
        (row["template"], row["language"], row["held_out"])
        for split in ("train", "test")
        for level in LEVELS
        for row in MedicalQuestions(split, 160, difficulty=level)
    }
    assert {
        (template.name, language, template.held_out) for template in TEMPLATES for language in ("en", "zh")
    } == asked


def test_the_splits_ask_about_different_things():
    train, val, test = (list(MedicalQuestions(split, 300, difficulty=(1, 3))) for split in ("train", "val", "test"))
    asked = [{row["sql"] for row in rows} for rows in (train, val, test)]
    assert not asked[0] & asked[1]
    assert not asked[0] & asked[2]
    assert not asked[1] & asked[2]
    quoted = [{text for sql in queries for text in sql.split("'")[1::2]} for queries in asked]
    shared = (quoted[0] & quoted[2]) - {"adult", "child"}
    assert shared == set()


def test_levels_and_languages_take_turns_and_a_quarter_of_the_test_are_kinds_that_train_lacks():
    rows = list(MedicalQuestions("train", 200))
    assert [(row["difficulty"], row["language"]) for row in rows[:4]] == [(1, "en"), (1, "zh"), (2, "en"), (2, "zh")]
    assert list(MedicalQuestions("train", 8)) == rows[:8]
    assert list(MedicalQuestions("train", 8, seed=1)) != rows[:8]
    assert {row["language"] for row in MedicalQuestions("train", 9, languages=("zh",))} == {"zh"}
    assert not any(row["held_out"] for row in rows)
    held_out = [row["held_out"] for row in MedicalQuestions("test", 200, difficulty=(1, 2))]
    assert 40 <= sum(held_out) <= 50


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"split": "dev"}, "`split` must be one of"),
        ({"difficulty": 5}, "difficulty must be"),
        ({"languages": ("de",)}, "languages must be"),
        ({"size": -1}, "size must be 0 or more"),
        ({"split": "test", "size": 5000, "difficulty": 2}, "ask for a smaller size or more levels"),
    ],
)
def test_what_cannot_be_asked_is_an_error(arguments, told):
    with pytest.raises(DatasetError, match=told):
        MedicalQuestions(**arguments)
    with pytest.raises(DatasetError, match="medical has the forms sft and rl, not preference"):
        load_examples("medical", "preference")


def test_its_examples_are_conversations_that_call_the_gold_query():
    tasks = load_task_dataset("medical:1,4", "train", 24)
    examples = load_examples("medical:1,4", "sft", max_samples=24)
    assert len(examples) == 24
    for example, task in zip(examples, tasks, strict=True):
        system, question, call, result, answer = example["messages"]
        assert "drug(id,name,name_zh,class" in system["content"]
        assert "meta(" not in system["content"]
        assert (question["role"], question["content"]) == ("user", task["question"])
        (asked,) = call["tool_calls"]
        assert json.loads(asked["function"]["arguments"]) == {"sql": task["sql"]}
        assert asked["function"]["name"] in {tool["function"]["name"] for tool in example["tools"]}
        assert result["tool_call_id"] == asked["id"]
        assert len(result["content"].splitlines()) == len(task["rows"])
        assert answer["content"] == f"Answer: {task['answer']}"
    for task, example in zip(load_examples("medical:1,4", "rl", max_samples=8), examples[:8], strict=True):
        assert task["prompt"] == example["messages"][:2]
        assert (task["ground_truth"], task["tools"]) == (task["answer"], example["tools"])
        assert task["sql"].startswith("SELECT")
