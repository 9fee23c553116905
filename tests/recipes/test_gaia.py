"""GAIA: reading a local copy, the benchmark's score, and the agent against a real server with scripted answers."""

from __future__ import annotations

import json

import pyarrow
import pytest
from openai import BadRequestError
from pyarrow import parquet

from mini_agentic_rl.datasets import DatasetError
from mini_agentic_rl.recipes.gaia import FunctionTool, GaiaAgent, web_search_tool
from mini_agentic_rl.recipes.gaia.agent import MAX_RESULT, PAGE, Toolbox, calculator_tool, read_file_tool
from mini_agentic_rl.recipes.gaia.tasks import final_answer, is_right, load_gaia
from recipes.playing import call, last_prompt, play


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
        assert {row["id"] for row in load_gaia(tmp_path, split)} == {row["id"] for row in rows}
    assert list(load_gaia(tmp_path, "train", 5, seed=1)) == list(load_gaia(tmp_path, "train", 5, seed=1))
    level_1 = load_gaia(tmp_path, "train", levels=[1])
    assert {row["level"] for row in level_1} == {1}
    assert {row["id"] for row in level_1} < {row["id"] for row in splits["train"]}
    with pytest.raises(DatasetError, match="levels"):
        load_gaia(tmp_path, "train", levels=[4])


def test_a_clone_of_the_repository_or_a_parquet_file_is_read(tmp_path):
    write(tmp_path / "clone" / "2023" / "validation", RECORDS)
    tmp_path.joinpath("sums.csv").write_text("a,b\n1,2\n")
    write(tmp_path, [record(1, file_name="sums.csv", Level="2"), record(2, **{"Final answer": "?"})])
    (row,) = load_gaia(tmp_path, "all")  # the question without an answer is left out
    expected = {"id": "task-1", "question": "What is 1 + 1?", "answer": "2", "level": 2, "file_name": "sums.csv"}
    assert row == expected | {"file": str(tmp_path.resolve() / "sums.csv")}
    table = pyarrow.Table.from_pylist([{**record, "Level": str(record["Level"])} for record in RECORDS])
    tmp_path.joinpath("parquet").mkdir()
    parquet.write_table(table, tmp_path / "parquet" / "metadata.parquet")
    assert list(load_gaia(tmp_path / "clone", "all")) == list(load_gaia(tmp_path / "parquet", "all"))


@pytest.mark.parametrize(
    ("records", "message"),
    [
        (None, r"data_dir: .* holds no metadata\.jsonl.*gaia-benchmark/GAIA"),
        ([record(1, **{"Final answer": "?"})], "no question has an answer"),
        ([record(1, Question=" ")], r'metadata\.jsonl, line 1: field "Question"'),
        ([record(1), record(2, Level=5)], r'line 2: field "Level".*5'),
        ([record(1, file_name="../secret")], r'"file_name" names .*secret'),
        (["text"], "line 1: not a JSON object"),
    ],
)
def test_an_invalid_copy_is_refused_by_the_line(tmp_path, records, message):
    tmp_path.joinpath("secret").write_text("x")
    folder = tmp_path / "copy"
    if records is not None:
        write(folder, records)
    with pytest.raises(DatasetError, match=message):
        load_gaia(folder, "all")
    if records is not None:
        folder.joinpath("metadata.jsonl").write_text(f"{json.dumps(record(1))}\n{{")
        with pytest.raises(DatasetError, match="line 2: not valid JSON"):
            load_gaia(folder, "all")


RIGHT = {
    "42": "42.0",
    "1234.5": "$1,234.50",
    "17": "17%",
    "1000": "1e3",
    "St Petersburg": "St. Petersburg",
    "The Seagull": "the sea gull",
    "a,b,c": "a, b, c",
    "1, 2, 3": "1, 2.0, $3",
    "santaclara, boston": "Santa Clara, Boston",
    "东京": "东京",
}
WRONG = [
    *((None, "42"), ("", "42"), ("43", "42"), ("42 apples", "42"), ("forty-two", "42"), ("Paris, France", "Paris")),
    *(("a, b", "a, b, c"), ("b, a", "a, b"), ("a., b", "a, b"), ("1, two", "1, 2"), ("1,000, 5", "1000, 5")),
]


def test_an_answer_is_scored_by_the_rules_of_the_benchmark():
    for gold, answer in RIGHT.items():
        assert is_right(answer, gold), answer
    for wrong, gold in WRONG:
        assert not is_right(wrong, gold), wrong


def test_the_final_answer_follows_the_last_marker():
    for text, answer in {
        "I think.\nFinal answer: 3, 4\nBye.": "3, 4",
        "FINAL ANSWER: 1\nNo, wait.\nFINAL ANSWER: 2": "2",
        "FINAL ANSWER:\nParis": "Paris",
        "**FINAL ANSWER: [Paris]**": "Paris",
        "FINAL ANSWER: `x = [1]`": "x = [1]",
        "FINAL ANSWER: \n\nwell": None,
        "The answer is 42.": None,
    }.items():
        assert final_answer(text) == answer


TASK = {"question": "What is 6 x 7?", "answer": "42", "file": "", "file_name": ""}


async def run(answers, *, task=TASK, context_length=8192, **options):
    """Return the rewards of one rollout by name, and the requests to the model."""
    played = await play(GaiaAgent(**options), task, answers, context_length=context_length)
    return played.rewards, played.requests


@pytest.mark.parametrize(("answer", "reward"), [("FINAL ANSWER: 42", 1.0), ("42", 0.0)])
async def test_the_reward_is_the_score_of_the_final_answer(answer, reward):
    rewards, requests = await run([call("calculator", expression="6*7"), answer])
    assert rewards == {"reward": reward, "answered": float("FINAL" in answer), "turns": 2.0}
    assert "<tool_response>\n42\n</tool_response>" in last_prompt(requests)
    first, second = (list(request.prompt_ids) for request in requests)
    assert second[: len(first)] == first
    assert "read_file" not in last_prompt(requests)


async def test_the_file_of_a_question_is_read_and_a_search_is_used(tmp_path):
    async def search(query: str) -> str:
        return f"Results about {query}: 42."

    (tmp_path / "fruit.csv").write_text("name,price\napple,1.5\n")
    task = TASK | {"file": str(tmp_path / "fruit.csv"), "file_name": "fruit.csv", "answer": "1.5"}
    answers = [call("read_file"), call("web_search", query="six by seven"), "FINAL ANSWER: $1.50"]
    rewards, requests = await run(answers, task=task, tools=[web_search_tool(search)])
    assert rewards["reward"] == 1.0
    for text in ("Attached file: fruit.csv", "name,price\napple,1.5\n", "Results about six by seven: 42."):
        assert text in last_prompt(requests)


async def test_turns_and_context_are_bounded():
    rewards, requests = await run([call("calculator", expression="1")], max_turns=3)
    assert rewards == {"reward": 0.0, "answered": 0.0, "turns": 3.0}
    length = len(requests[0].prompt_ids)
    rewards, _ = await run([call("calculator", expression="1")], context_length=length + 100)
    assert rewards["reward"] == 0.0
    assert 1 <= rewards["turns"] < 12
    with pytest.raises(BadRequestError, match="context"):
        await run(["?"], context_length=length)


async def test_invalid_calls_get_an_error_and_long_results_are_cut():
    def fails(_arguments):
        raise ValueError("not today")

    tools = [calculator_tool(), FunctionTool("fail", "Fails.", {"type": "object"}, fails)]
    box = Toolbox([*tools, web_search_tool(lambda query: "x" * (MAX_RESULT + 7))])
    assert (await box.use("calculator", '{"expression": "6*7"}')) == "42"
    assert (await box.use("search", "{}")).startswith("error: no tool named search; use calculator, fail")
    assert (await box.use("calculator", "{")) == "error: arguments are not valid JSON"
    assert (await box.use("calculator", "[]")) == "error: arguments must be a JSON object"
    assert (await box.use("calculator", "{}")) == "error: the argument expression is missing"
    assert (await box.use("fail", "{}")) == "error: not today"
    assert (await box.use("web_search", '{"query": "x"}')).endswith("x\n[7 characters left out]")
    with pytest.raises(ValueError, match="same name"):
        GaiaAgent(tools=[calculator_tool()])


def test_a_long_file_is_read_page_by_page_and_other_files_are_refused(tmp_path, monkeypatch):
    path, picture = tmp_path / "long.txt", tmp_path / "a.png"
    path.write_text("a" * PAGE + "b" * 10)
    read = read_file_tool(path, "long.txt").run
    assert read({}) == "a" * PAGE + f"\n[10 more characters; go on with offset {PAGE}]"
    assert read({"offset": PAGE}) == "b" * 10
    for offset in (-1, "3", PAGE + 10):
        with pytest.raises(ValueError, match=r"offset|characters"):
            read({"offset": offset})
    picture.write_bytes(b"\x89PNG\xff\xfe")
    with pytest.raises(ValueError, match=r"not a text file; \.png files cannot be read"):
        read_file_tool(picture, "a.png").run({})
    monkeypatch.setattr("mini_agentic_rl.recipes.gaia.agent.MAX_FILE_BYTES", 3)
    with pytest.raises(ValueError, match="longer than 3 bytes"):
        read_file_tool(path, "long.txt").run({})
