"""Examples by name and form: what each form holds, splits that never share a question, and real files."""

from __future__ import annotations

import csv
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from mini_agentic_rl.datasets import DatasetError, divide_examples, load_examples, load_task_dataset
from mini_agentic_rl.datasets.formats import FORMS, prompt_key
from mini_agentic_rl.recipes.math import TOOLS
from mini_agentic_rl.rewards import is_correct

COLUMNS = {
    "sft": {"messages"},
    "rl": {"prompt", "ground_truth", "id", "question", "answer"},
    "preference": {"prompt", "chosen", "rejected"},
    "unpaired": {"prompt", "completion", "label"},
}
GSM8K = {
    "question": "Tom has 48 clips and sells half. How many has he left?",
    "answer": "He sells 48/2 = <<48/2=24>>24 clips.\nHe keeps 48-24 = <<48-24=24>>24 clips.\n#### 24",
}


def write_jsonl(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in rows), encoding="utf-8")
    return path


@pytest.mark.parametrize(("name", "form"), [*(("arithmetic", form) for form in FORMS), ("gsm_symbolic", "sft")])
def test_generated_sets_give_every_form_and_their_splits_share_no_question(name: str, form: Any) -> None:
    parts = {split: load_examples(name, form, split=split, max_samples=20) for split in ("train", "val", "test")}
    for rows in parts.values():
        assert len(rows) == 20
        assert all(COLUMNS[form] <= set(row) for row in rows)
    questions = [{prompt_key(row) for row in rows} for rows in parts.values()]
    assert sum(map(len, questions)) == len(set.union(*questions))
    assert parts["train"] == load_examples(name, form, split="train", max_samples=20)
    if form == "preference":  # the forms of one split are about the same questions
        demonstrations = load_examples(name, "sft", split="train", max_samples=20)
        assert [prompt_key(row) for row in demonstrations] == [prompt_key(row) for row in parts["train"]]


def test_demonstrations_end_in_the_right_answer_as_the_prompt_asks() -> None:
    for example, task in zip(load_examples("arithmetic", "sft", max_samples=50),
                             load_examples("arithmetic", "rl", max_samples=50), strict=True):  # fmt: skip
        assert example["messages"][: len(task["prompt"])] == task["prompt"]
        assert example["tools"] == task["tools"]
        assert is_correct(example["messages"][-1]["content"], task["ground_truth"])


def test_levels_are_part_of_the_name() -> None:
    rows = load_examples("arithmetic:1,3", "rl", max_samples=20)
    assert {row["difficulty"] for row in rows} == {1, 3}
    with pytest.raises(DatasetError, match=r"arithmetic:9: the levels are 1, 2, 3, 4"):
        load_examples("arithmetic:9", "rl")


def test_the_rows_of_a_function_are_a_data_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "made_rows.py").write_text(
        "def made(form, **settings):\n    messages = [{'role': 'user', 'content': form}]\n"
        "    return [{'messages': [*messages, {'role': 'assistant', 'content': 'x'}]}] * settings['max_samples']\n"
        "def broken(**settings):\n    raise OSError('disk gone')\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    rows = load_examples("made_rows:made", "sft", max_samples=4)
    assert [row["messages"][0]["content"] for row in rows] == ["sft"] * 4
    with pytest.raises(DatasetError, match=r"made_rows:broken.*OSError: disk gone"):
        load_examples("made_rows:broken", "sft")


def test_gsm8k_from_a_local_copy_has_both_forms_and_keeps_its_test_set(tmp_path: Path) -> None:
    train = [{**GSM8K, "question": f"{index}. {GSM8K['question']}"} for index in range(60)]
    (tmp_path / "main").mkdir()
    table = pyarrow.Table.from_pylist(train)
    parquet.write_table(table.slice(0, 30), tmp_path / "main" / "train-00000-of-00002.parquet")
    parquet.write_table(table.slice(30), tmp_path / "main" / "train-00001-of-00002.parquet")
    parquet.write_table(pyarrow.Table.from_pylist([GSM8K]), tmp_path / "main" / "test-00000-of-00001.parquet")
    [test] = load_examples(tmp_path, "sft", split="test")
    assert test["messages"][-1]["content"] == "24 clips.\nAnswer: 24"
    assert test["tools"] == TOOLS
    [task] = load_examples(tmp_path, "rl", split="test")
    assert task["prompt"] == test["messages"][:2]
    assert task["tools"] == TOOLS
    assert (task["ground_truth"], task["question"]) == ("24", GSM8K["question"])
    learnt, measured = (load_examples(tmp_path, "sft", split=split) for split in ("train", "val"))
    assert len(learnt) + len(measured) == 60
    assert measured
    rows = {row["question"] for row in load_task_dataset(tmp_path, "val")}
    assert {prompt_key(row) for row in measured} == rows, "agents and trainers divide a data set alike"
    pair = load_examples(tmp_path, "preference", split="test")[0]
    assert pair["chosen"][0]["content"].endswith("Answer: 24")
    assert pair["rejected"] != pair["chosen"]


def test_one_file_in_every_format_gives_the_same_examples(tmp_path: Path) -> None:
    rows = [{"question": f"多少 {index}?", "answer": f"答案，{index}"} for index in range(30)]
    paths = [write_jsonl(tmp_path / "a.jsonl", rows), tmp_path / "b.json", tmp_path / "c.csv", tmp_path / "d.parquet"]
    paths[1].write_text(json.dumps({"data": rows}, ensure_ascii=False), encoding="utf-8")
    with paths[2].open("w", encoding="utf-8-sig", newline="") as file:
        writer = csv.DictWriter(file, ["question", "answer"])
        writer.writeheader()
        writer.writerows(rows)
    parquet.write_table(pyarrow.Table.from_pylist(rows), paths[3])
    found = [load_examples(path, "sft", split="train") for path in paths]
    assert len(found[0]) == 24
    assert found[0] == found[1] == found[2] == found[3]
    assert load_examples(paths[0], "sft", split="all", max_samples=5, seed=3) == load_examples(
        paths[3], "sft", split="all", max_samples=5, seed=3
    )


def test_published_splits_of_a_folder_are_kept_and_the_missing_one_is_taken_from_train(tmp_path: Path) -> None:
    rows = [{"prompt": f"q{index}", "chosen": "good", "rejected": "bad"} for index in range(50)]
    write_jsonl(tmp_path / "train_prefs.jsonl", rows[:40])
    write_jsonl(tmp_path / "test_prefs.jsonl", rows[40:])
    parts = {split: load_examples(tmp_path, "preference", split=split) for split in ("train", "val", "test")}
    assert [prompt_key(row) for row in parts["test"]] == [f"q{index}" for index in range(40, 50)]
    assert len(parts["train"]) + len(parts["val"]) == 40
    assert parts["val"]
    assert len(load_examples(tmp_path, "unpaired", split="test")) == 20


@pytest.mark.parametrize(
    ("record", "messages"),
    [
        ({"prompt": "p", "completion": "c"}, [("user", "p"), ("assistant", "c")]),
        ({"instruction": "i", "input": "x", "output": "o"}, [("user", "i\nx"), ("assistant", "o")]),
        ({"instruction": "i", "input": "", "output": "o", "system": "s"},
         [("system", "s"), ("user", "i"), ("assistant", "o")]),
        ({"query": "q", "response": "r", "history": [["a", "b"]]},
         [("user", "a"), ("assistant", "b"), ("user", "q"), ("assistant", "r")]),
        ({"conversations": [{"from": "system", "value": "s"}, {"from": "human", "value": "h"},
                            {"from": "gpt", "value": "g"}]}, [("system", "s"), ("user", "h"), ("assistant", "g")]),
        ({"prompt": [{"role": "user", "content": "p"}], "completion": [{"role": "assistant", "content": "c"}]},
         [("user", "p"), ("assistant", "c")]),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "p"}]},
                       {"role": "assistant", "content": "c"}]}, [("user", "p"), ("assistant", "c")]),
        ({"prompt": "p", "chosen": "c", "rejected": "r"}, [("user", "p"), ("assistant", "c")]),
    ],
)  # fmt: skip
def test_every_common_shape_of_a_demonstration_is_read(
    tmp_path: Path, record: dict[str, Any], messages: list[tuple[str, str]]
) -> None:
    [example] = load_examples(write_jsonl(tmp_path / "rows.jsonl", [record]), "sft", split="all")
    assert [(message["role"], message["content"]) for message in example["messages"]] == messages


def test_tool_calls_of_sharegpt_become_those_of_openai(tmp_path: Path) -> None:
    turns = [
        {"from": "human", "value": "p"},
        {"from": "function_call", "value": '{"name": "weather", "arguments": {"city": "Porto"}}'},
        {"from": "tool_call", "value": '{"name": "weather", "parameters": {"city": "Rome"}}'},
        {"from": "observation", "value": "sunny"},
        {"from": "tool_response", "value": "rain"},
        {"from": "gpt", "value": "c"},
    ]
    tool = {"name": "weather", "parameters": {"type": "object"}}
    path = write_jsonl(tmp_path / "rows.jsonl", [{"conversations": turns, "tools": json.dumps([tool])}])
    [example] = load_examples(path, "sft", split="all")
    _, answer, *results, _ = example["messages"]  # both calls belong to one answer
    assert [call["function"]["arguments"] for call in answer["tool_calls"]] == ['{"city": "Porto"}', '{"city": "Rome"}']
    assert [result["tool_call_id"] for result in results] == [call["id"] for call in answer["tool_calls"]]
    assert results[0] == {"role": "tool", "content": "sunny", "tool_call_id": answer["tool_calls"][0]["id"]}
    assert example["tools"] == [{"type": "function", "function": tool}]


def test_tasks_of_trl_and_verl_are_tasks(tmp_path: Path) -> None:
    rows = [
        {"prompt": [{"role": "user", "content": "2+2?"}], "reward_model": {"ground_truth": "4"}},
        {"problem": "3+3?", "solution": "It is \\boxed{6}."},
    ]
    path = write_jsonl(tmp_path / "tasks.jsonl", rows)
    found = load_examples(path, "rl", split="all")
    assert [row["question"] for row in found] == ["2+2?", "3+3?"]
    assert all(is_correct(answer, row["ground_truth"]) for answer, row in zip(("4", "6"), found, strict=True))
    assert [row["answer"] for row in load_task_dataset(path, "all")] == [row["answer"] for row in found]


@pytest.mark.parametrize(
    ("record", "form", "complaint"),
    [
        ({"prompt": "p"}, "sft", r"rows\.jsonl, line 2: no answer to imitate: its fields are prompt \(form sft\)"),
        (
            {"messages": [{"role": "user", "content": "p"}]},
            "sft",
            "line 2: the conversation does not end with an answer",
        ),
        ({"prompt": "p", "completion": "  "}, "sft", "line 2: completion is empty"),
        ({"messages": [{"role": "wizard", "content": "p"}]}, "sft", "unknown role: 'wizard'"),
        ({"prompt": "p", "completion": "c"}, "rl", "line 2: no right answer"),
        ({"prompt": "p", "chosen": "c", "rejected": "c"}, "preference", "line 2: chosen equals rejected"),
        ({"prompt": "p", "completion": "c"}, "unpaired", "line 2: neither a label nor a preference"),
    ],
)
def test_a_record_of_the_wrong_form_is_named(tmp_path: Path, record: dict[str, Any], form: Any, complaint: str) -> None:
    fine = {"prompt": "p", "completion": "c", "ground_truth": "1", "chosen": "c", "rejected": "r"}
    path = write_jsonl(tmp_path / "rows.jsonl", [fine, record])
    with pytest.raises(DatasetError, match=complaint):
        load_examples(path, form, split="all")


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("nowhere.jsonl", r"nowhere\.jsonl cannot be read \(No such file"),
        (
            "gsm9k",
            r"'gsm9k' does not exist \(did you mean 'gsm8k'\?\); choose arithmetic, countdown, gsm8k, gsm_symbolic",
        ),
        ("no_such_module:rows", "ModuleNotFoundError"),
    ],
)
def test_a_data_set_that_does_not_exist_says_what_to_give(name: str, complaint: str) -> None:
    with pytest.raises(DatasetError, match=complaint):
        load_examples(name, "sft")


def test_unknown_forms_and_sizes_are_refused() -> None:
    with pytest.raises(DatasetError, match="form must be one of"):
        load_examples("arithmetic", "dpo")  # type: ignore[arg-type]
    with pytest.raises(DatasetError, match="max_samples"):
        load_examples("arithmetic", "sft", max_samples=-1)
    with pytest.raises(DatasetError, match="split"):
        load_examples("arithmetic", "sft", split="validation")  # type: ignore[arg-type]
    with pytest.raises(DatasetError, match="eval_fraction: 1"):
        divide_examples([{"question": "q"}], 1)


@given(st.lists(st.sampled_from("abcdefghijklmnop"), max_size=40), st.floats(0, 0.99), st.integers(0, 5))
def test_dividing_loses_nothing_shares_no_question_and_ignores_the_order(
    questions: list[str], fraction: float, seed: int
) -> None:
    rows = [{"messages": [{"role": "user", "content": question}], "at": at} for at, question in enumerate(questions)]
    train, held_out = divide_examples(rows, fraction, seed)
    assert sorted(row["at"] for row in (*train, *held_out)) == list(range(len(rows)))
    assert not {prompt_key(row) for row in train} & {prompt_key(row) for row in held_out}
    again = divide_examples(rows[::-1], fraction, seed)[1]
    assert Counter(map(prompt_key, again)) == Counter(map(prompt_key, held_out))
    if fraction and len(set(questions)) > 1:
        assert train
        assert held_out
