"""Task data sets by name: files, the Hub, and generated ones; and the overlap of their splits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import reasoning_gym

import datasets
from command_line import invoke
from mini_agentic_rl.datasets import (
    DatasetError,
    load_examples,
    load_task_dataset,
    overlap_of_splits,
    split_overlap,
)
from mini_agentic_rl.datasets.records import is_hub_name, load_hub
from mini_agentic_rl.errors import UserError


def write(folder: Path, *lines: str, name: str = "tasks.jsonl") -> Path:
    path = folder / name
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def test_answers_of_every_kind_become_text(tmp_path: Path) -> None:
    answers = ["x+1", 42, 0, 2.5, True, [1, 2], "She had 3 + 4 = 7.\n#### 1,007"]
    path = write(tmp_path, *(json.dumps({"question": "q?", "answer": answer}) for answer in answers))
    rows = load_task_dataset(path, "all")
    assert [row["answer"] for row in rows] == ["x+1", "42", "0", "2.5", "True", "[1, 2]", "1007"]
    assert rows[-1]["solution"] == answers[-1]


@pytest.mark.parametrize(
    ("answer", "read"),
    [
        ("so\n#### [8.124,12.852]", "[8.124,12.852]"),
        ("so\n#### 0,1", "0,1"),
        ("so\n#### 1,2,3", "1,2,3"),
        ("so\n#### $1,234,567.50", "$1234567.50"),
        ("so\n#### 1,234 apples", "1234 apples"),
        (["1,234", 5], "[1234, 5]"),
    ],
)
def test_only_the_thousands_commas_of_a_number_go(tmp_path: Path, answer: Any, read: str) -> None:
    path = write(tmp_path, json.dumps({"question": "q?", "answer": answer}))
    assert load_task_dataset(path, "all")[0]["answer"] == read
    if isinstance(answer, str):
        assert load_examples(str(path), "rl", split="all")[0]["ground_truth"] == read
    path = write(tmp_path, json.dumps({"problem": "q?", "solution": answer}))
    assert load_examples(str(path), "rl", split="all")[0]["ground_truth"] == read


def test_other_fields_ids_blank_lines_and_a_byte_order_mark_are_fine(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_bytes(
        b'\xef\xbb\xbf{"question": "a?", "answer": "1", "level": 3}\r\n\r\n{"id": 7, "question": "b?", "answer": "2"}\n'
    )
    assert [(row["id"], row.get("level")) for row in load_task_dataset(path, "all")] == [("mine-1", 3), ("7", None)]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ('{"question": "q?"}', 'line 2: field "answer" is missing'),
        ('{"question": "q?", "answer": null}', 'line 2: field "answer" is empty'),
        ('{"question": "q?", "answer": "  "}', 'line 2: field "answer" is empty'),
        ('{"question": "q?", "answer": NaN}', 'line 2: field "answer" is empty'),
        ('{"question": "q?", "answer": {"a": 1}}', 'line 2: field "answer" must be text, a number'),
        ('{"question": "q?", "answer": "so it is ####"}', 'line 2: field "answer" has nothing after'),
        ('{"answer": "1"}', 'line 2: field "question" is missing'),
        ('{"question": 5, "answer": "1"}', 'line 2: field "question" must be text, not int'),
        ('{"question": "q?", "answer": "1"', "line 2: not valid JSON"),
        ("[1, 2]", "line 2: not a JSON object"),
    ],
)
def test_a_bad_row_is_one_line_that_names_file_line_and_field(tmp_path: Path, line: str, complaint: str) -> None:
    path = write(tmp_path, '{"question": "fine?", "answer": "1"}', line)
    with pytest.raises(UserError) as error:
        load_task_dataset(path, "all")
    assert f"{path}, {complaint}" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("content", [b"", b"\n\n", b"\xff\xfe\x00"])
def test_a_file_without_rows_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "empty.jsonl"
    path.write_bytes(content)
    with pytest.raises(DatasetError, match=r"empty\.jsonl"):
        load_task_dataset(path, "all")


def test_a_file_is_divided_by_its_questions_and_drawn_from_by_size_and_seed(tmp_path: Path) -> None:
    lines = [json.dumps({"question": f"question {index % 50}?", "answer": str(index)}) for index in range(100)]
    path = write(tmp_path, *lines)
    parts = {split: load_task_dataset(path, split) for split in ("train", "val", "test")}
    assert [len(parts[split]) for split in ("train", "val", "test")] == [80, 10, 10]
    questions = [{row["question"] for row in part} for part in parts.values()]
    assert sum(map(len, questions)) == len(set.union(*questions)) == 50
    assert len(load_task_dataset(path, "all")) == 100
    drawn = list(load_task_dataset(path, "all", 10, seed=1))
    assert len(drawn) == 10
    assert drawn == list(load_task_dataset(path, "all", 10, seed=1))
    assert drawn != list(load_task_dataset(path, "all", 10, seed=2))
    assert len(load_task_dataset(path, "all", 199)) == 100
    tiny = write(tmp_path, *lines[:3], name="tiny.jsonl")
    assert [len(load_task_dataset(tiny, split)) for split in ("train", "val", "test")] == [1, 1, 1]


def test_gsm_symbolic_is_reproducible_and_no_question_crosses_splits_between_seeds() -> None:
    train = load_task_dataset("gsm_symbolic", "train", 300, seed=0)
    assert list(train) == list(load_task_dataset("gsm_symbolic", "train", 300, seed=0))
    test = {row["question"] for row in load_task_dataset("gsm_symbolic", "test", 100, seed=1)}
    assert not test & {row["question"] for row in train}


def test_no_two_problems_of_gsm_symbolic_draw_their_numbers_by_one_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[int] = []
    plain = reasoning_gym.create_dataset

    def observed(name: str, seed: int, size: int) -> Any:
        seeds.extend(range(seed, seed + size))
        return plain(name, seed=seed, size=size)

    monkeypatch.setattr(reasoning_gym, "create_dataset", observed)
    assert len(load_task_dataset("gsm_symbolic", "test", 250)) == 250
    assert len(seeds) == len(set(seeds)) > 2000


def test_the_hub_gives_the_published_splits_and_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    data = tmp_path / "repository" / "data"
    data.mkdir(parents=True)
    for split, count in (("train", 3), ("test", 1)):
        rows = [{"question": f"{split} {index}?", "answer": f"#### {index}"} for index in range(count)]
        (data / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    parts = load_hub(str(tmp_path / "repository"))
    assert {split: len(records) for split, records in parts.items()} == {"train": 3, "test": 1}
    where, record = parts["test"][0]
    assert where.endswith("repository, test row 0")
    assert record == {"question": "test 0?", "answer": "#### 0"}
    (tmp_path / "empty").mkdir()
    with pytest.raises(DatasetError, match=r"cannot be loaded from the Hub .*give a local copy"):
        load_hub(str(tmp_path / "empty"))
    names = ("openai/gsm8k", "openai/gsm8k:main", "my_module:rows", "arithmetic", "a/b/c")
    assert [is_hub_name(name) for name in names] == [True, True, False, False, False]


SEEN = ["Ann has 3 apples and buys 4 more. How many has she?", "A train goes 60 miles in 1.5 hours."]


def test_the_overlap_is_counted_whole_with_other_numbers_and_in_runs_of_words():
    same = split_overlap(SEEN, ["ann has 3  apples, and buys 4 more: how many has she"], 4)
    assert (same["same"], same["same_but_numbers"], same["with_ngram"], same["ngrams_seen"]) == (1, 1, 1, 1.0)
    other, new = "Ann has 1,300 apples and buys 5 more. How many has she?", "Why is the sky blue over the sea today?"
    mixed = split_overlap(SEEN, [other, new], 4)
    assert (mixed["same"], mixed["same_but_numbers"], mixed["with_ngram"], mixed["ngrams_seen"]) == (0, 1, 1, 0.5)
    assert mixed["examples"] == [other]
    part = split_overlap(SEEN, ["Bob buys 9 more. How many has she now?"], 4)
    assert (part["same_but_numbers"], part["with_ngram"]) == (0, 1)
    assert 0 < part["ngrams_seen"] < 1
    assert split_overlap(SEEN, ["Bob buys 9 more. How many has she now?"], 8)["with_ngram"] == 0


def test_splits_are_compared_with_all_before_them_and_short_questions_count_whole():
    rows = overlap_of_splits({"train": ["hi"], "val": [], "test": ["hi", "no"]}, 8)
    assert [(row["seen"], row["asked"], row["same"], row["with_ngram"]) for row in rows] == [("train", "test", 1, 1)]
    assert split_overlap(["hi"], [], 8)["ngrams_seen"] == 0.0


def test_the_command_counts_a_leak_and_finds_none_of_whole_questions_in_generated_tasks(tmp_path):
    for split, questions in (("train", SEEN), ("test", [SEEN[0], "Something else entirely?"])):
        rows = [json.dumps({"question": question, "answer": "1"}) for question in questions]
        (tmp_path / f"{split}.jsonl").write_text("\n".join(rows))
    (tmp_path / "validation.jsonl").write_text(json.dumps({"question": "Another?", "answer": "1"}))
    found = json.loads(invoke("dataset", tmp_path, "--check-splits", "--json").stdout)
    leaks = {(row["seen"], row["asked"]): row["same"] for row in found["overlaps"]}
    assert leaks == {("train", "val"): 0, ("train", "test"): 1, ("val", "test"): 0}
    shown = invoke("dataset", "arithmetic:1", "--check-splits", "--max-samples", 40)
    assert shown.exit_code == 0, shown.output
    assert "train 40, val 40, test 40, transfer 40" in shown.stdout
    guesses = json.loads(invoke("dataset", "guess", "--check-splits", "--max-samples", 20, "--json").stdout)
    assert ("train", "transfer", 0) in {(row["seen"], row["asked"], row["same"]) for row in guesses["overlaps"]}
    (tmp_path / "one.jsonl").write_text(json.dumps({"question": "Only one?", "answer": "1"}))
    alone = invoke("dataset", tmp_path / "one.jsonl", "--check-splits")
    assert (alone.exit_code, alone.stderr.count("\n")) == (2, 1)
