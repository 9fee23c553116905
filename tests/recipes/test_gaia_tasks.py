"""A local copy of GAIA, made up here."""

from __future__ import annotations

import json

import pyarrow
import pytest
from pyarrow import parquet

from mini_agentic_rl.datasets import DatasetError
from mini_agentic_rl.recipes.gaia.tasks import load_gaia


def record(number: int, **changes) -> dict:
    return {
        "task_id": f"task-{number}",
        "Question": f"What is {number} + 1?",
        "Level": 1 + number % 3,
        "Final answer": str(number + 1),
        "file_name": "",
        "Annotator Metadata": {"Steps": "1. Add."},
        **changes,
    }


RECORDS = [record(number) for number in range(30)]


def write(folder, records):
    folder.mkdir(parents=True, exist_ok=True)
    folder.joinpath("metadata.jsonl").write_text("\n".join(map(json.dumps, records)), encoding="utf-8")
    return folder


def test_the_splits_are_the_same_every_time_and_share_no_question(tmp_path):
    write(tmp_path, RECORDS)
    splits = {split: load_gaia(tmp_path, split) for split in ("train", "val", "test")}
    assert [len(rows) for rows in splits.values()] == [24, 3, 3]
    ids = [row["id"] for rows in splits.values() for row in rows]
    assert sorted(ids) == sorted(record["task_id"] for record in RECORDS)
    write(tmp_path, RECORDS[::-1])
    for split, rows in splits.items():
        again = load_gaia(tmp_path, split)
        assert {row["id"] for row in again} == {row["id"] for row in rows}
    assert list(load_gaia(tmp_path, "train", 5, seed=1)) == list(load_gaia(tmp_path, "train", 5, seed=1))
    assert len(load_gaia(tmp_path, "all")) == 30


def test_rows_are_plain_and_hold_what_the_agent_needs(tmp_path):
    tmp_path.joinpath("sums.csv").write_text("a,b\n1,2\n")
    write(tmp_path, [record(1, file_name="sums.csv", Level="2")])
    (row,) = load_gaia(tmp_path, "all")
    assert json.loads(json.dumps(row)) == row
    assert row == {
        "id": "task-1",
        "question": "What is 1 + 1?",
        "answer": "2",
        "level": 2,
        "file_name": "sums.csv",
        "file": str(tmp_path.resolve() / "sums.csv"),
    }


def test_levels_are_chosen_without_moving_a_question_to_another_split(tmp_path):
    write(tmp_path, RECORDS)
    everything = {row["id"] for row in load_gaia(tmp_path, "train")}
    one = load_gaia(tmp_path, "train", levels=[1])
    assert {row["level"] for row in one} == {1}
    assert {row["id"] for row in one} < everything
    with pytest.raises(DatasetError, match="levels"):
        load_gaia(tmp_path, "train", levels=[4])


def test_a_clone_of_the_repository_or_a_parquet_file_will_do(tmp_path):
    write(tmp_path / "clone" / "2023" / "validation", RECORDS)
    table = pyarrow.Table.from_pylist([{**record, "Level": str(record["Level"])} for record in RECORDS])
    tmp_path.joinpath("parquet").mkdir()
    parquet.write_table(table, tmp_path / "parquet" / "metadata.parquet")
    assert list(load_gaia(tmp_path / "clone", "all")) == list(load_gaia(tmp_path / "parquet", "all"))


def test_questions_without_an_answer_are_left_out(tmp_path):
    write(tmp_path, [record(1), record(2, **{"Final answer": "?"})])
    assert [row["id"] for row in load_gaia(tmp_path, "all")] == ["task-1"]


@pytest.mark.parametrize(
    ("records", "message"),
    [
        (None, r"data_dir: .* holds no metadata\.jsonl.*gaia-benchmark/GAIA"),
        ([record(1, **{"Final answer": "?"})], "no question has an answer"),
        ([record(1, Question=" ")], r'metadata\.jsonl, line 1: field "Question"'),
        ([record(1), record(2, Level=5)], r'line 2: field "Level".*5'),
        ([record(1, file_name="gone.xlsx")], r'"file_name" names .gone\.xlsx'),
        ([record(1, file_name="../secret")], r'"file_name" names .*secret'),
        (["text"], "line 1: must be an object"),
    ],
)
def test_what_is_wrong_with_a_copy_is_named(tmp_path, records, message):
    tmp_path.joinpath("secret").write_text("x")
    folder = tmp_path / "copy"
    if records is not None:
        write(folder, records)
    with pytest.raises(DatasetError, match=message):
        load_gaia(folder, "all")


def test_a_line_that_is_no_json_is_named(tmp_path):
    tmp_path.joinpath("metadata.jsonl").write_text(f"{json.dumps(record(1))}\n{{")
    with pytest.raises(DatasetError, match="line 2: not valid JSON"):
        load_gaia(tmp_path, "all")
