"""Tool calls read out of sampled text, whole or in pieces."""

from __future__ import annotations

import json

import pytest

from mini_agentic_rl.gateway.tool_calls import ToolCall, ToolCallScanner, split_tool_calls

from .samples import CALL_TEXT

OTHER = '<tool_call>{"name":"look_up","arguments":{"word":"é"}}</tool_call>'

TEXTS = [
    "plain text",
    CALL_TEXT,
    f"Let me see.\n{CALL_TEXT}",
    f"{CALL_TEXT}\n{OTHER}",
    f"a {CALL_TEXT} b {OTHER} c",
    "<tool_call>\n{broken\n</tool_call> so it goes",
    f"<tool_call>no</tool_call>\n{CALL_TEXT}",
    "1 < 2 and <tool_ca is no tag",
    "  \n ends in white space \n ",
    CALL_TEXT.removesuffix("\n</tool_call>"),
    "<tool_call>\n{never closed",
    '<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
    "<tool_call>" + "[" * 5000 + "</tool_call>",
]


def read(pieces):
    text = "".join(piece for piece in pieces if isinstance(piece, str))
    return text, [(piece.name, piece.arguments) for piece in pieces if isinstance(piece, ToolCall)]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("size", [1, 2, 7])
def test_pieces_do_not_depend_on_how_the_text_arrives(text, size):
    whole = ToolCallScanner()
    expected = read(whole.feed(text) + whole.finish())
    scanner = ToolCallScanner()
    pieces = []
    for start in range(0, len(text), size):
        pieces += scanner.feed(text[start : start + size])
    assert read(pieces + scanner.finish()) == expected


def test_text_and_several_calls_are_told_apart():
    content, calls = split_tool_calls(f"Let me see.\n{CALL_TEXT}\n{OTHER}")
    assert content == "Let me see."
    assert [call.name for call in calls] == ["calculate", "look_up"]
    assert json.loads(calls[0].arguments) == {"expression": "12+30"}
    assert calls[1].arguments == '{"word": "é"}'
    assert calls[0].id.startswith("call_")
    assert calls[0].id != calls[1].id


@pytest.mark.parametrize(
    "body",
    [
        '{"name": "f", "arguments": {"x": NaN}}',
        "{broken",
        "[]",
        "7",
        '{"arguments": {}}',
        '{"name": 3}',
        '{"name": ""}',
        '{"name": "f", "arguments": "x"}',
    ],
)
def test_a_malformed_call_stays_text(body):
    text = f"Hm. <tool_call>{body}</tool_call> Well."
    assert split_tool_calls(text) == (text, [])


def test_arguments_may_be_missing_or_be_json_text():
    assert split_tool_calls('<tool_call>{"name": "f"}</tool_call>')[1][0].arguments == "{}"
    call = split_tool_calls('<tool_call>{"name": "f", "arguments": "{\\"x\\": 1}"}</tool_call>')[1][0]
    assert call.arguments == '{"x": 1}'


def test_a_call_counts_when_only_its_closing_tag_is_missing():
    assert [call.name for call in split_tool_calls(TEXTS[9])[1]] == ["calculate"]


def test_text_is_given_out_before_a_call_is_complete():
    scanner = ToolCallScanner()
    assert scanner.feed("Let me see. <tool_") == ["Let me see."]
    assert scanner.feed('call>\n{"name": "f"') == []
    (call,) = scanner.feed("}</tool_call>")
    assert isinstance(call, ToolCall)
