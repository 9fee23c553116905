"""Rows as people really have them: Arrow tables, marks for training, JSON as text, labels, content blocks."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

import datasets
from mini_agentic_rl.datasets import DatasetError, examples_of, load_examples, records_of
from mini_agentic_rl.datasets.records import load_hub
from mini_agentic_rl.gateway import plain_messages


def write_jsonl(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in rows), encoding="utf-8")
    return path


def chat(**answer: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": "p"}, {"role": "assistant", "content": "c", **answer}]


def loaded(tmp_path: Path, record: dict[str, Any], form: Any = "sft") -> list[dict[str, Any]]:
    return load_examples(write_jsonl(tmp_path / "rows.jsonl", [record]), form, split="all")


def calling(name: str, arguments: Any, content: str | None = None) -> dict[str, Any]:
    call = {"id": "c1", "type": "function", "function": {"name": name, "arguments": arguments}}
    return {"role": "assistant", "content": content, "tool_calls": [call]}


def offered(name: str, **properties: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": properties}}}


CALLING_ROWS = [
    {
        "messages": [{"role": "user", "content": "p"}, calling("weather", {"city": "Porto"}),
                     {"role": "tool", "tool_call_id": "c1", "content": "sunny"}, {"role": "assistant", "content": "c"}],
        "tools": [offered("weather", city={"type": "string", "enum": ["Porto"]})],
    },
    {
        "messages": [{"role": "user", "content": "p"}, calling("mail", {"to": "ana@example.org"}),
                     {"role": "tool", "tool_call_id": "c1", "content": "sent"}, {"role": "assistant", "content": "c"}],
        "tools": [offered("mail", to={"type": "string"}), offered("halt")],
    },
]  # fmt: skip


@pytest.mark.parametrize("way", ["pyarrow", "datasets", "a folder on the Hub", "by hand"])
def test_rows_whose_tools_differ_are_the_same_from_arrow_as_from_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    source = write_jsonl(tmp_path / "rows.jsonl", CALLING_ROWS)
    wanted = load_examples(source, "sft", split="all")
    target = tmp_path / "data" / "train.parquet"
    target.parent.mkdir()
    if way == "pyarrow":
        parquet.write_table(pyarrow.Table.from_pylist(CALLING_ROWS), target)
    else:
        datasets.Dataset.from_list(CALLING_ROWS).to_parquet(target)
    if way == "a folder on the Hub":
        records = [record for _, record in load_hub(str(target.parent.parent / "data"))["train"]]
    elif way == "by hand":
        records = list(records_of(datasets.Dataset.from_list(CALLING_ROWS)))
    else:
        assert load_examples(target, "sft", split="all") == wanted
        return
    assert [examples_of(record, "sft", "")[0] for record in records] == wanted


def test_a_null_that_json_text_had_is_kept_in_every_file_type(tmp_path: Path) -> None:
    for arguments in ({"limit": None}, '{"limit": null}'):
        [example] = loaded(tmp_path, {"messages": [chat()[0], calling("find", arguments)]})
        assert json.loads(example["messages"][1]["tool_calls"][0]["function"]["arguments"]) == {"limit": None}
    rows = [{"messages": [chat()[0], calling("find", '{"limit": null}')]}, {"messages": chat()}]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "text.parquet")
    mixed = datasets.Dataset.from_list(
        [{"messages": [chat()[0], calling("find", {"limit": limit})]} for limit in (None, "all", 3)],
        on_mixed_types="use_json",
    )
    mixed.to_parquet(tmp_path / "json.parquet")
    for name in ("text", "json"):
        call = load_examples(tmp_path / f"{name}.parquet", "sft", split="all")[0]["messages"][1]["tool_calls"][0]
        assert json.loads(call["function"]["arguments"]) == {"limit": None}


@pytest.mark.parametrize("mark", [{"weight": 0.0}, {"train": "false"}, {"train_on_turn": False}, {"mask": True}])
def test_a_turn_that_is_marked_as_not_trained_keeps_its_mark(tmp_path: Path, mark: dict[str, Any]) -> None:
    [name] = mark
    messages = [{**chat()[0], **mark}, chat(**mark)[1], *chat(**{name: not mark[name] if name != "train" else "true"})]
    [example] = loaded(tmp_path, {"messages": messages})
    assert [message.get("train") for message in example["messages"]] == [None, False, None, None]
    [again] = load_examples(write_jsonl(tmp_path / "again.jsonl", [example]), "sft", split="all")
    assert again == example
    [task] = loaded(tmp_path, {"messages": [*chat(**mark), chat()[0]], "ground_truth": "1"}, "rl")
    assert "train" not in task["prompt"][1]


def test_of_a_prompt_and_its_completion_the_completion_is_trained(tmp_path: Path) -> None:
    [example] = loaded(tmp_path, {"prompt": [*chat(), chat()[0]], "completion": chat()[1:]})
    assert [message.get("train") for message in example["messages"]] == [None, False, None, None]


@pytest.mark.parametrize("mark", [{"label": "0"}, {"desirable": "no"}, {"loss": "false"}])
@pytest.mark.parametrize("answer", [{"prompt": "p", "completion": "bad"}, {"messages": chat()}])
def test_an_answer_that_its_label_or_mark_excludes_is_not_imitated(
    tmp_path: Path, answer: dict[str, Any], mark: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    [name] = mark
    rows = [{**answer, **mark}, {"prompt": "q", "completion": "good", name: True}]
    [example] = load_examples(write_jsonl(tmp_path / "rows.jsonl", rows), "sft", split="all")
    assert example["messages"][-1]["content"] == "good"
    assert "1 row left out" in caplog.text


@pytest.mark.parametrize(
    ("record", "form", "complaint"),
    [
        ({"messages": chat(weight=0.5)}, "sft", r"line 1: messages has a weight that is neither 0 nor 1: 0\.5"),
        ({"messages": chat(train=True, loss=0)}, "sft", "marks that contradict each other: train, loss"),
        ({"messages": chat(weight=0)}, "sft", "every answer is marked as not to be trained"),
        ({"messages": [{**chat()[0], "train": True}, chat()[1]]}, "sft", "wants a message of the role user trained"),
        ({"messages": chat(train_detail=[{"begin_offset": 0}])}, "sft", "has a train_detail"),
        ({"messages": chat(loss_mask=[0, 1])}, "sft", "has a loss_mask that is neither 0 nor 1"),
        ({"messages": chat(mask="User")}, "sft", "has a mask that is neither 0 nor 1"),
        ({"prompt": "p", "completion": "c", "label": False}, "sft", "1 row left out: .* and no row is left"),
        ({"messages": chat(thinking={"steps": []})}, "sft", "has a thinking that is no text: dict"),
        ({"messages": chat(thinking=["steps"])}, "sft", "has a thinking that is no text: list"),
        ({"prompt": "p", "chosen": chat(train=0)[1:], "rejected": "r"}, "preference", "chosen is marked as not"),
        ({"messages": chat(train=0), "label": 1}, "unpaired", "messages is marked as not to be trained"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_use", "name": "f"}]}]}, "sft",
         "has a tool_use block in a message of the role user"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "sft", "has a image_url block"),
        ({"messages": chat(images=["a.png"])}, "sft", "messages has images: only text is trained on"),
        ({"messages": chat(), "images": ["a.png"]}, "sft", "the record has images"),
        ({"messages": chat(), "weight": 0.5}, "sft", r"the row has a weight that is neither 0 nor 1: 0\.5"),
        ({"question": "q", "answer": "#### 1", "loss": 0}, "sft", "the row is marked as not to be trained"),
        ({"prompt": "p", "chosen": "c", "rejected": "r", "loss": 0}, "preference", "the row is marked as not"),
        ({"prompt": "p", "completion": "c", "label": 1, "weight": 2}, "unpaired", "the row has a weight that is"),
        ({"messages": "[{'role': 'user', 'content': 'p'}]"}, "sft", "it is text, and not the JSON text of messages"),
        ({"prompt": "p", "completion": "c", "label": "maybe"}, "unpaired", "label is neither true nor false: 'maybe'"),
    ],
)  # fmt: skip
def test_what_cannot_be_trained_as_asked_is_refused_with_its_cause(
    tmp_path: Path, record: dict[str, Any], form: Any, complaint: str
) -> None:
    with pytest.raises(DatasetError, match=complaint):
        loaded(tmp_path, record, form)


def test_thoughts_are_read_under_their_other_names(tmp_path: Path) -> None:
    for name in ("reasoning_content", "reasoning", "thinking"):
        [example] = loaded(tmp_path, {"messages": chat(**{name: "t"})})
        assert example["messages"][1]["reasoning_content"] == "t"
        assert plain_messages(chat(**{name: "t"}))[1]["reasoning_content"] == "t", "the gateway reads the same"


def test_the_older_function_call_is_a_tool_call_with_its_result(tmp_path: Path) -> None:
    call = {"name": "weather", "arguments": '{"city": "Porto"}'}
    messages = [
        chat()[0],
        {"role": "assistant", "content": None, "function_call": call},
        {"role": "function", "name": "weather", "content": "sunny"},
        chat()[1],
    ]
    [example] = loaded(tmp_path, {"messages": messages, "functions": [{"name": "weather", "parameters": {}}]})
    [made] = example["messages"][1]["tool_calls"]
    assert made["function"] == call
    assert example["messages"][2] == {
        "role": "tool", "name": "weather", "content": "sunny", "tool_call_id": made["id"]
    }  # fmt: skip
    assert example["tools"][0]["function"]["name"] == "weather"
    [read] = plain_messages(messages)[1]["tool_calls"]
    assert read["function"] == {"name": "weather", "arguments": {"city": "Porto"}}, "the gateway reads the same"


def test_content_blocks_of_anthropic_are_thought_text_calls_and_results(tmp_path: Path) -> None:
    record = {
        "system": [{"type": "text", "text": "s"}],
        "messages": [
            {"role": "user", "content": "p"},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "t", "signature": "x"}, {"type": "text", "text": "one moment"},
                {"type": "tool_use", "id": "u1", "name": "weather", "input": {"city": "Porto", "day": None}}]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "u1", "content": [{"type": "text", "text": "sunny"}]},
                {"type": "text", "text": "and?"}]},
            {"role": "assistant", "content": [{"type": "text", "text": "c"}]},
        ],
        "tools": [{"name": "weather", "input_schema": {"type": "object", "properties": {}}}],
    }  # fmt: skip
    [example] = loaded(tmp_path, record)
    assert example["messages"] == [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "p"},
        {"role": "assistant", "content": "one moment", "reasoning_content": "t", "tool_calls": [
            {"id": "u1", "type": "function",
             "function": {"name": "weather", "arguments": '{"city": "Porto", "day": null}'}}]},
        {"role": "tool", "content": "sunny", "tool_call_id": "u1"},
        {"role": "user", "content": "and?"},
        {"role": "assistant", "content": "c"},
    ]  # fmt: skip
    assert example["tools"] == [offered("weather")]


def in_every_file_type(tmp_path: Path, record: dict[str, str]) -> list[Path]:
    paths = [write_jsonl(tmp_path / "rows.jsonl", [record]), tmp_path / "rows.json", tmp_path / "rows.csv",
             tmp_path / "rows.parquet"]  # fmt: skip
    paths[1].write_text(json.dumps({"data": [record]}))
    with paths[2].open("w", encoding="utf-8-sig", newline="") as file:
        writer = csv.DictWriter(file, list(record))
        writer.writeheader()
        writer.writerow(record)
    parquet.write_table(pyarrow.Table.from_pylist([record]), paths[3])
    return paths


@pytest.mark.parametrize(
    ("record", "form", "column", "wanted"),
    [
        ({"messages": json.dumps(chat())}, "sft", "messages", chat()),
        ({"prompt": json.dumps(chat()[:1]), "completion": json.dumps(chat()[1:])}, "sft", "messages", chat()),
        ({"prompt": "p", "chosen": json.dumps(chat()[1]), "rejected": json.dumps([{**chat()[1], "content": "r"}])},
         "preference", "chosen", chat()[1:]),
        ({"messages": json.dumps(chat()), "tools": json.dumps([offered("f")])}, "sft", "tools", [offered("f")]),
        *(({"input": json.dumps({"messages": chat()[:1], "tools": [offered("f")]}),
            "preferred_output": json.dumps(chat()[1:]),
            "non_preferred_output": json.dumps([{**chat()[1], "content": "r"}])}, "preference", column, wanted)
          for column, wanted in (("prompt", chat()[:1]), ("tools", [offered("f")]))),
        ({"prompt": "p", "responses": '["c", "r"]', "scores": "[2, 1]"}, "preference", "chosen", chat()[1:]),
        *(({"prompt": "p", "completion": text}, "sft", "messages", [chat()[0], {"role": "assistant", "content": text}])
          for text in ('[{"name": "a"}]', '{"text": "x"}', "[1, 2]", '{"role": "boss", "content": "x"}', "[not json",
                       '[{"role": "user", "content": "x"}]')),
        *(({"prompt": text, "completion": "c"}, "sft", "messages", [{"role": "user", "content": text}, chat()[1]])
          for text in ('[{"name": "a"}]', '{"a": 1}', "[x]")),
        ({"question": "p", "answer": '{"数": 1}'}, "rl", "answer", '{"数": 1}'),
    ],
)  # fmt: skip
def test_json_text_means_the_same_in_every_file_type(
    tmp_path: Path, record: dict[str, str], form: Any, column: str, wanted: Any
) -> None:
    for path in in_every_file_type(tmp_path, record):
        [example] = load_examples(path, form, split="all")
        assert example[column] == wanted, path.suffix


@pytest.mark.parametrize(
    ("good", "bad"), [("True", "False"), ("1", "0"), ("1.0", "-1"), ("desirable", "undesirable"), ("yes", "no")]
)
def test_labels_have_many_spellings(tmp_path: Path, good: str, bad: str) -> None:
    for label, is_good in ((good, True), (bad, False)):
        [example] = loaded(tmp_path, {"prompt": "p", "completion": "c", "kto_tag": label}, "unpaired")
        assert example["label"] is is_good


def test_a_conversation_with_a_label_judges_its_last_answer(tmp_path: Path) -> None:
    [example] = loaded(tmp_path, {"messages": chat(), "kto_tag": False, "tools": [offered("f")]}, "unpaired")
    assert example == {"prompt": chat()[:1], "completion": chat()[1:], "label": False, "tools": [offered("f")]}


def test_two_answers_judged_in_csv_are_read_as_their_numbers_say(tmp_path: Path) -> None:
    shp = {"history": "p", "human_ref_A": "a", "human_ref_B": "b", "labels": "0"}
    arena = {"prompt": "p", "response_a": "a", "response_b": "b", "winner_model_a": "0", "winner_model_b": "1"}
    for record in (shp, arena):
        for path in in_every_file_type(tmp_path, record):
            [pair] = load_examples(path, "preference", split="all")
            assert (pair["chosen"][0]["content"], pair["rejected"][0]["content"]) == ("b", "a")
