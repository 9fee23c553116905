"""Every published shape of a preference is read as what it means; what means nothing is refused with a reason."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mini_agentic_rl.datasets.messages import ShapeError
from mini_agentic_rl.datasets.preferences import PAIR_FIELDS, PreferenceFields, read_preference

U = {"role": "user", "content": "问题?"}


def said(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def of(*roles: str) -> list[dict[str, str]]:
    return [said(role, f"{role} {index}") for index, role in enumerate(roles)]


SHAPES: list[tuple[dict[str, Any], str, str, str]] = [
    ({"prompt": "p", "chosen": "好", "rejected": "坏"}, "p", "好", "坏"),
    *(({"question": "p", better: "c", worse: "r"}, "p", "c", "r") for better, worse in PAIR_FIELDS),
    ({"prompt": [said("user", "p")], "chosen": [said("assistant", "c")], "rejected": [said("assistant", "r")]},
     "p", "c", "r"),
    ({"prompt": "p", "chosen": [said("user", "p"), said("assistant", "c")],
      "rejected": [said("user", "p"), said("assistant", "r")]}, "p", "c", "r"),
    ({"chosen": "\n\nHuman: a\n\nAssistant: b\n\nHuman: p\n\nAssistant: c",
      "rejected": "\n\nHuman: a\n\nAssistant: b\n\nHuman: p\n\nAssistant: r\n\nr2"}, "a|b|p", "c", "r\n\nr2"),
    ({"prompt": "\n\nHuman: p\n\nAssistant:", "chosen": " c", "rejected": " r"}, "p", " c", " r"),
    ({"system": "s", "question": "p", "chosen": "c", "rejected": "r"}, "s|p", "c", "r"),
    ({"instruction": "i", "input": "x", "output": ["c", "r"]}, "i\nx", "c", "r"),
    ({"instruction": "i", "input": "x", "chosen": "c", "rejected": "r", "history": [["a", "b"]]}, "a|b|i\nx", "c", "r"),
    ({"conversations": [{"from": "human", "value": "p"}], "chosen": {"from": "gpt", "value": "c"},
      "rejected": {"from": "gpt", "value": "r"}}, "p", "c", "r"),
    ({"query": "p", "response": "c", "rejected_response": "r", "history": [["a", "b"]]}, "a|b|p", "c", "r"),
    ({"messages": [said("user", "p"), said("assistant", "c")], "rejected_response": "r"}, "p", "c", "r"),
    ({"messages": [said("user", "p"), said("assistant", "c")],
      "rejected_messages": [said("user", "p"), said("assistant", "r")]}, "p", "c", "r"),
    ({"input": {"messages": [said("user", "p")]}, "preferred_output": [said("assistant", "c")],
      "non_preferred_output": [said("assistant", "r")]}, "p", "c", "r"),
    ({"prompt": "p", "response_0": "r", "response_1": "c", "better_response_id": 1}, "p", "c", "r"),
    ({"prompt": "p", "response_a": "c", "response_b": "r", "winner": "model_a"}, "p", "c", "r"),
    ({"prompt": "p", "response_a": "r", "response_b": "c", "preferred": "B"}, "p", "c", "r"),
    ({"instruction": "p", "output_1": "c", "output_2": "r", "preference": 1.0}, "p", "c", "r"),
    ({"context": [said("user", "p")], "response1": "c", "response2": "r", "overall_preference": -2}, "p", "c", "r"),
    ({"history": "p", "human_ref_A": "r", "human_ref_B": "c", "labels": 0}, "p", "c", "r"),
    ({"question": {"full_text": "p"}, "answer_0": "r", "answer_1": "c", "score_0": -0.5, "score_1": 0.5},
     "p", "c", "r"),
    ({"conversation_a": [said("user", "p"), said("assistant", "r")],
      "conversation_b": [said("user", "p"), said("assistant", "c")], "winner": "model_b"}, "p", "c", "r"),
    ({"instruction": "p", "completions": [
        {"response": "m", "overall_score": 5}, {"response": "c", "overall_score": "8.5"},
        {"response": "r", "overall_score": 2}, {"response": "x"}]}, "p", "c", "r"),
    ({"instruction": "p", "completions": [
        {"response": "r", "annotations": {"honesty": {"Rating": "2"}, "truth": {"Rating": "N/A"}}},
        {"response": "c", "annotations": {"honesty": {"Rating": "4"}, "truth": {"Rating": "3"}}}]}, "p", "c", "r"),
    ({"prompt": "p", "responses": ["r", "c", "m"], "scores": [0.1, 0.9, 0.5]}, "p", "c", "r"),
    ({"prompt": "p", "responses": ["r", "c", "m"], "rank": [3, 1, 2]}, "p", "c", "r"),
    ({"question": "p", "answers": [{"text": "c", "pm_score": 4}, {"text": "r", "pm_score": 1}]}, "p", "c", "r"),
]  # fmt: skip


@pytest.mark.parametrize(("record", "prompt", "chosen", "rejected"), SHAPES)
def test_every_common_shape_is_read(record: dict[str, Any], prompt: str, chosen: str, rejected: str) -> None:
    pair, _ = read_preference(record)
    assert "|".join(message["content"] for message in pair["prompt"]) == prompt
    assert [message["content"] for message in pair["chosen"]] == [chosen]
    assert [message["content"] for message in pair["rejected"]] == [rejected]
    assert pair["chosen"][-1]["role"] == pair["rejected"][-1]["role"] == "assistant"
    assert read_preference(json.loads(json.dumps(pair)))[0] == pair, "what is written is read again"


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"prompt": "p", "chosen": "a", "rejected": " a "}, "chosen equals rejected"),
        ({"prompt": "p", "chosen": "", "rejected": "a"}, "chosen is empty"),
        ({"prompt": "p", "chosen": "a", "rejected": None}, "rejected is empty"),
        ({"prompt": " ", "chosen": "a", "rejected": "b"}, "empty prompt"),
        ({"chosen": "a", "rejected": "b"}, "no prompt"),
        ({"prompt": "p", "chosen": 3, "rejected": "b"}, "chosen is neither text nor messages"),
        ({"prompt": "p", "chosen": [said("user", "x")], "rejected": "b"},
         "only one of chosen and rejected holds its prompt"),
        ({"prompt": "p", "completion": "a"}, "no known shape of a preference"),
        ({"prompt": "p", "response_a": "a", "response_b": "b", "winner": "tie (bothbad)"}, "tie"),
        ({"prompt": "p", "response_a": "a", "response_b": "b", "winner": "c"}, "the judgement names neither answer"),
        ({"prompt": "p", "response_a": "a", "response_b": "b"}, "no known shape of a preference"),
        ({"prompt": "p", "responses": ["a", "b"], "scores": [1, 1]}, "tie"),
        ({"prompt": "p", "responses": ["a", "b"], "scores": [1]}, "another number of scores than of answers"),
        ({"prompt": "p", "responses": ["a", "b"], "scores": [1, "NaN"]}, "fewer than two scored answers"),
        ({"prompt": [said("user", "p"), said("assistant", "x")], "chosen": "a", "rejected": "b"},
         "the prompt ends with an answer"),
        ({"chosen": of("user", "assistant", "user", "assistant"), "rejected": [*of("user"), said("assistant", "x"),
          *of("user", "assistant")]}, "the conversations part before the last answer"),
        ({"chosen": of("user", "assistant"), "rejected": of("system", "assistant")},
         "chosen and rejected have no prompt in common"),
        ({"chosen": of("user", "assistant"), "rejected": of("user")}, "rejected does not end with an answer"),
        ({"prompt": "p", "chosen": {"weird": 1}, "rejected": "b"}, "chosen is no list of messages"),
    ],
)  # fmt: skip
def test_what_states_no_preference_says_why(record: dict[str, Any], reason: str) -> None:
    with pytest.raises(ShapeError) as error:
        read_preference(record)
    assert error.value.reason == reason


def test_fields_can_be_named() -> None:
    fields = PreferenceFields("问", "优", "劣")
    pair, _ = read_preference({"问": "p", "优": "c", "劣": "r", "prompt": "other"}, fields)
    assert [pair[name][0]["content"] for name in ("prompt", "chosen", "rejected")] == ["p", "c", "r"]
    with pytest.raises(ShapeError, match="no field '优'"):
        read_preference({"问": "p", "劣": "r"}, fields)


def test_tools_and_tool_calls_come_along() -> None:
    call = {"function": {"name": "f", "arguments": {"x": 1}}}
    chosen = [{"role": "assistant", "content": None, "tool_calls": [call]}, said("tool", "1"), said("assistant", "c")]
    pair, _ = read_preference({"prompt": "p", "chosen": chosen, "rejected": "r", "tools": '[{"name": "f"}]'})
    assert pair["tools"] == [{"type": "function", "function": {"name": "f"}}]
    assert pair["chosen"][0]["tool_calls"][0]["function"]["arguments"] == '{"x": 1}'
    assert pair["chosen"][1]["tool_call_id"] == pair["chosen"][0]["tool_calls"][0]["id"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["role", "content", "from", "value", "response", "score", "x"]), inner, max_size=3
        )
    ),
    max_leaves=8,
)


@given(st.sampled_from(SHAPES), st.data())
@settings(max_examples=120, deadline=None)
def test_a_known_shape_with_one_broken_field_is_refused_or_still_a_preference(shape: Any, data: Any) -> None:
    record = dict(shape[0])
    record[data.draw(st.sampled_from(sorted(record)))] = data.draw(JSON)
    try:
        pair, _ = read_preference(record)
    except ShapeError:
        return
    assert pair["chosen"] != pair["rejected"]
    assert pair["chosen"][-1]["role"] == pair["rejected"][-1]["role"] == "assistant"
