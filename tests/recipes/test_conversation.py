"""Word problems as conversations with the calculator, and without it where that is asked for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mini_agentic_rl.datasets import DatasetError, load_examples, load_task_dataset
from mini_agentic_rl.recipes.math import TOOLS, demonstration, opening
from mini_agentic_rl.rewards import is_correct
from mini_agentic_rl.tools import calculate

NATALIA = (
    "Natalia sold 48/2 = <<48/2=24>>24 clips in May.\n"
    "Natalia sold 48+24 = <<48+24=72>>72 clips altogether in April and May.\n#### 72"
)


def row(solution: str) -> dict[str, Any]:
    return {"question": "How many?", "solution": solution, "answer": solution.rpartition("#### ")[2]}


def told(messages: list[dict[str, Any]]) -> list[str]:
    """What is said and called, in order, without the prompt."""
    found = []
    for message in messages[2:]:
        calls = [json.loads(call["function"]["arguments"])["expression"] for call in message.get("tool_calls", ())]
        found += [f"{message['role']}: {message['content']}", *(f"call: {call}" for call in calls)]
    return found


def gsm8k_folder(folder: Path) -> Path:
    rows = [{"question": f"{n}. How many clips?", "answer": NATALIA} for n in range(20)]
    for name, part in (("train", rows[:15]), ("test", rows[15:])):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part))
    return folder


def test_marks_of_gsm8k_become_calls_between_the_words_of_the_solution() -> None:
    assert told(demonstration(row(NATALIA))) == [
        "assistant: Natalia sold 48/2",
        "call: 48/2",
        "tool: 24",
        "assistant: 24 clips in May.\nNatalia sold 48+24",
        "call: 48+24",
        "tool: 72",
        "assistant: 72 clips altogether in April and May.\nAnswer: 72",
    ]


@pytest.mark.parametrize(
    ("solution", "calls"),
    [
        ("He pays $<<5*2=10>>10 and 10% of that, $<<10*.1=1>>1.\n#### 11", ["5*2", "10*.1"]),
        ("That is <<10/3=3.33>>3.33 each.\n#### 3.33", ["10/3"]),
        ("Wrong: <<2+2=5>>5. Odd: <<4=4>>4, <<x+1=2>>2, <<1/0=0>>0.\n#### 5", []),
        ("James responds to 160-48=112 emails, in a week to 112*5=560.\n#### 560", ["160-48", "112*5"]),
        ("She reads 1,200 + 300 = 1,500 pages = 2 books.\n#### 1500", ["1,200 + 300"]),
    ],
)
def test_only_what_the_calculator_finds_as_it_is_written_becomes_a_call(solution: str, calls: list[str]) -> None:
    messages = demonstration(row(solution))
    lines = told(messages)
    assert [line.removeprefix("call: ") for line in lines if line.startswith("call: ")] == calls
    assert [line.removeprefix("tool: ") for line in lines if line.startswith("tool: ")] == list(map(calculate, calls))
    assert is_correct(messages[-1]["content"], row(solution)["answer"])
    ids = [call["id"] for message in messages for call in message.get("tool_calls", ())]
    assert ids == [message["tool_call_id"] for message in messages if message["role"] == "tool"]
    assert len(ids) == len(set(ids))
    assert not any("<<" in str(message["content"]) for message in messages)


def test_a_solution_made_to_be_slow_is_not() -> None:
    for text in ("1+" * 20_000, "<<" * 20_000, "1 = " * 20_000, "(" * 40_000 + "=3", "9*" * 30 + "=" * 20_000):
        assert demonstration(row(f"{text}\n#### 1"))[-1]["content"].endswith("Answer: 1")


@pytest.mark.parametrize("name", ["gsm8k", "./gsm8k", "gsm8k/train.jsonl", "arithmetic"])
def test_imitation_rewards_and_the_agent_begin_with_the_same_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / "gsm8k").mkdir()
    gsm8k_folder(tmp_path / "gsm8k")
    monkeypatch.chdir(tmp_path)
    shown, tasks = (load_examples(name, form, max_samples=3) for form in ("sft", "rl"))
    for example, task, agents in zip(shown, tasks, load_task_dataset(name, "train", 3), strict=True):
        assert example["messages"][:2] == task["prompt"] == opening(agents)
        assert example["tools"] == task["tools"] == TOOLS
        assert any(message.get("tool_calls") for message in example["messages"])


def test_text_before_the_name_of_a_data_set_asks_for_a_solution_in_words(tmp_path: Path) -> None:
    folder = gsm8k_folder(tmp_path)
    (example, *_), (task, *_) = (load_examples(f"text:{folder}", form, split="test") for form in ("sft", "rl"))
    assert example["messages"][:2] == task["prompt"] == opening(load_task_dataset(f"text:{folder}", "test")[0])
    assert "calculator" not in task["prompt"][0]["content"]
    assert "tools" not in example
    assert "tools" not in task
    words = (
        "Natalia sold 48/2 = 24 clips in May.\nNatalia sold 48+24 = 72 clips altogether in April and May.\nAnswer: 72"
    )
    assert [message["content"] for message in example["messages"][2:]] == [words]
    assert "tools" not in load_examples("text:arithmetic:1", "rl", max_samples=1)[0]
    with pytest.raises(DatasetError, match="'gsm9k' does not exist"):
        load_examples("text:gsm9k", "sft")


def test_examples_that_were_written_to_a_file_keep_their_tools(tmp_path: Path) -> None:
    rows = load_examples("arithmetic:1", "rl", max_samples=4)
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = load_examples(tmp_path / "tasks.jsonl", "rl", split="all")
    assert [(row["prompt"], row["tools"]) for row in found] == [(row["prompt"], row["tools"]) for row in rows]
