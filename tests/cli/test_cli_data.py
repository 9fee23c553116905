"""`convert-dpo` and `dataset` as a person and as a script see them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from command_line import invoke
from mini_agentic_rl.datasets import load_examples

RAW = [
    {"question": "头痛吃什么药？", "response_chosen": "先看医生。", "response_rejected": "随便。"},
    {"query": "q", "response": "a", "rejected_response": "b"},
    {"prompt": "q", "chosen": "a", "rejected": "a"},
    {"text": "q"},
]


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    path = tmp_path / "raw.jsonl"
    path.write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in RAW) + "\nbroken\n", encoding="utf-8")
    return path


def test_a_raw_file_is_converted_and_what_was_left_out_is_shown(raw: Path, tmp_path: Path) -> None:
    output = tmp_path / "converted.jsonl"
    result = invoke("convert-dpo", f"--input={raw}", f"--output={output}", "--report", tmp_path / "report.json")
    assert result.exit_code == 0, result.output
    assert "2 of 5 records written (1 pair, 1 swift)" in result.stdout
    assert "chosen equals rejected" in result.stdout
    assert "line 5 (Expecting value" in result.stdout
    report = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert {reason: found["count"] for reason, found in report["dropped"].items()} == {
        "chosen equals rejected": 1,
        "no known shape of a preference": 1,
        "not valid JSON": 1,
    }
    rows = load_examples(output, "preference", split="all")
    assert rows[0]["prompt"][0]["content"] == "头痛吃什么药？"
    fields = ("--prompt-field", "query", "--chosen-field", "rejected_response", "--rejected-field", "response")
    result = invoke("convert-dpo", "--input", raw, "--output", output, *fields)
    assert result.exit_code == 0, result.output
    assert load_examples(output, "preference", split="all")[0]["chosen"][0]["content"] == "b"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("convert-dpo", "--output", "o.jsonl"), "error: --input is required"),
        (("convert-dpo", "--input", "nowhere.jsonl", "--output", "o.jsonl"), "error: --input: nowhere.jsonl cannot be"),
        (("dataset", "nowhere.jsonl"), "error: DATASET: nowhere.jsonl cannot be read"),
        (("dataset", "arithmetic", "--split", "all"), 'error: DATASET: arithmetic: the split "all" is for files'),
    ],
)
def test_what_cannot_work_is_one_line(arguments: tuple[str, ...], complaint: str, monkeypatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith(complaint)
    assert result.stderr.count("\n") == 1


def test_a_data_set_is_shown_and_written(tmp_path: Path) -> None:
    shown = invoke(
        "dataset", "arithmetic:1", "--form", "sft", "--max-samples", 5, "--show", 2, "--output", tmp_path / "o.jsonl"
    )
    assert shown.exit_code == 0, shown.output
    assert "arithmetic:1: 5 examples of the form sft in the split train" in shown.stdout
    assert shown.stdout.count("→ calculator {") == 2, "calls are shown with the words that are said with them"
    assert shown.stdout.count("messages · assistant:") == 4
    assert load_examples(tmp_path / "o.jsonl", "sft", split="all") == load_examples(
        "arithmetic:1", "sft", max_samples=5
    )
    found = json.loads(invoke("dataset", "arithmetic", "--form", "preference", "--json").stdout)
    assert found["examples"] == sum(found["faults"].values()) == 1000


def test_a_file_is_shown_as_what_will_be_trained_on(tmp_path: Path) -> None:
    tool = {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}
    masked = [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "hi", "weight": 0},
        {"role": "user", "content": "Porto?"},
        {"role": "assistant", "thinking": "look it up", "content": "sunny", "weight": 1},
    ]
    path = tmp_path / "chat.jsonl"
    path.write_text("\n".join(json.dumps({"messages": masked, "tools": [tool]}) for _ in range(4)))
    shown = invoke("dataset", path, "--split", "all").stdout
    assert shown.count("messages · user: hello") == 3
    assert shown.count("messages · assistant (not trained): hi") == 3
    assert shown.count("messages · assistant: thought: look it up\nsunny") == 3
    assert shown.count("tools: weather(city)") == 3
    path.write_text("\n".join(json.dumps({"messages": masked, "kto_tag": tag}) for tag in ("1", "0")))
    shown = invoke("dataset", path, "--split", "all", "--form", "unpaired").stdout
    assert shown.count("prompt · assistant (not trained): hi") == 2
    assert (shown.count("label: True"), shown.count("label: False")) == (1, 1)
