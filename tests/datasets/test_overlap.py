"""What comes back from one split in another is counted: whole, with other numbers, and in runs of words."""

from __future__ import annotations

import json

from typer.testing import CliRunner

from mini_agentic_rl.cli import app
from mini_agentic_rl.datasets import overlap_of_splits, split_overlap

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
    def invoke(*arguments):
        return CliRunner().invoke(app, ["dataset", *map(str, arguments)], env={"COLUMNS": "160", "TERM": "dumb"})

    for split, questions in (("train", SEEN), ("test", [SEEN[0], "Something else entirely?"])):
        rows = [json.dumps({"question": question, "answer": "1"}) for question in questions]
        (tmp_path / f"{split}.jsonl").write_text("\n".join(rows))
    (tmp_path / "validation.jsonl").write_text(json.dumps({"question": "Another?", "answer": "1"}))
    found = json.loads(invoke(tmp_path, "--check-splits", "--json").stdout)
    leaks = {(row["seen"], row["asked"]): row["same"] for row in found["overlaps"]}
    assert leaks == {("train", "val"): 0, ("train", "test"): 1, ("val", "test"): 0}
    shown = invoke("arithmetic:1", "--check-splits", "--max-samples", 40)
    assert shown.exit_code == 0, shown.output
    assert "train 40, val 40, test 40, transfer 40" in shown.stdout
    guesses = json.loads(invoke("guess", "--check-splits", "--max-samples", 20, "--json").stdout)
    assert ("train", "transfer", 0) in {(row["seen"], row["asked"], row["same"]) for row in guesses["overlaps"]}
    (tmp_path / "one.jsonl").write_text(json.dumps({"question": "Only one?", "answer": "1"}))
    alone = invoke(tmp_path / "one.jsonl", "--check-splits")
    assert (alone.exit_code, alone.stderr.count("\n")) == (2, 1)
