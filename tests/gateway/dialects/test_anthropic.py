"""Anthropic messages as chat completions and back, without a server."""

from __future__ import annotations

import json

import pytest

from mini_agentic_rl.gateway.dialects import AnthropicDialect
from mini_agentic_rl.http import HttpError

from .chunks import CALLS, REASONED, chunks, completion

ASKED = {"model": "tiny", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}


def chat_of(**fields):
    return AnthropicDialect().open({**ASKED, **fields}, None).chat


def messages_of(*messages):
    return chat_of(messages=list(messages))["messages"]


def user(*blocks):
    return {"role": "user", "content": list(blocks)}


def assistant(*blocks):
    return {"role": "assistant", "content": list(blocks)}


def text(said):
    return {"type": "text", "text": said, "cache_control": {"type": "ephemeral"}}


def use(call_id, given):
    return {"type": "tool_use", "id": call_id, "name": "f", "input": given}


def result(call_id, content="42"):
    return {"type": "tool_result", "tool_use_id": call_id, "content": content, "is_error": False}


def events_of(exchange, parts):
    sent = b"".join(exchange.events(part) for part in parts) + exchange.end()
    return [json.loads(line[6:]) for line in sent.split(b"\n") if line.startswith(b"data: ")]


def test_blocks_of_an_answer_become_one_message_and_results_messages_of_their_own():
    told = messages_of(
        user(text("12+30?")),
        assistant(
            {"type": "thinking", "thinking": "hm", "signature": "s"},
            {"type": "redacted_thinking", "data": "x"},
            text("Let me see."),
            use("a", {"x": 1}),
            use("b", {}),
        ),
        user(text("Go on."), result("a"), result("b", [text("4"), text("2")])),
    )
    assert told == [
        {"role": "user", "content": "12+30?"},
        {
            "role": "assistant",
            "content": "Let me see.",
            "reasoning_content": "hm",
            "tool_calls": [
                {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}},
                {"id": "b", "type": "function", "function": {"name": "f", "arguments": "{}"}},
            ],
        },
        {"role": "tool", "tool_call_id": "a", "content": "42"},
        {"role": "tool", "tool_call_id": "b", "content": "4\n2"},
        {"role": "user", "content": "Go on."},
    ]


@pytest.mark.parametrize("system", ["Be terse.\nNow.", [text("Be terse."), text("Now.")]])
def test_system_text_comes_first(system):
    assert chat_of(system=system)["messages"][0] == {"role": "system", "content": "Be terse.\nNow."}


def test_an_answer_without_blocks_is_an_empty_message():
    told = messages_of(user(text("hi")), assistant(), {"role": "system", "content": "Be terse."}, user(text("so?")))
    assert [one["role"] for one in told] == ["user", "assistant", "system", "user"]
    assert told[1]["content"] == ""


@pytest.mark.parametrize(
    ("source", "url"),
    [
        ({"type": "url", "url": "http://x/y.png"}, "http://x/y.png"),
        ({"type": "base64", "media_type": "image/png", "data": "AAAA"}, "data:image/png;base64,AAAA"),
    ],
)
def test_images_are_handed_on_for_models_that_see(source, url):
    (told,) = messages_of(user(text("what?"), {"type": "image", "source": source}))
    assert told["content"] == [{"type": "text", "text": "what?"}, {"type": "image_url", "image_url": {"url": url}}]


def test_every_option_has_its_field_in_the_chat_request():
    schema = {"type": "object", "properties": {}}
    chat = chat_of(
        tools=[{"name": "f", "description": "d", "input_schema": schema, "strict": True}],
        tool_choice={"type": "any", "disable_parallel_tool_use": True},
        stop_sequences=["x"],
        temperature=0.5,
        top_p=0.9,
        top_k=4,
        metadata={"user_id": "me"},
        output_config={"format": {"type": "json_schema", "schema": schema}, "effort": "low"},
        seed=7,
        stream=True,
    )
    assert chat == {
        "model": "tiny",
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 9,
        "tools": [
            {"type": "function", "function": {"name": "f", "description": "d", "parameters": schema, "strict": True}}
        ],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "stop": ["x"],
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 4,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "output", "schema": schema, "strict": True},
        },
        "reasoning_effort": "low",
        "user": "me",
        "seed": 7,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


@pytest.mark.parametrize("say", [CALLS, REASONED])
def test_an_upstreams_pieces_make_the_blocks_that_it_gives_whole(say):
    events = events_of(AnthropicDialect().open(ASKED, None), chunks(say))
    whole = AnthropicDialect().open(ASKED, None).answer(completion(say))
    built = []
    for event in events:
        if event["type"] == "content_block_start":
            built.append({**event["content_block"], "json": ""})
        elif event["type"] == "content_block_delta":
            assert event["index"] == len(built) - 1
            delta = event["delta"]
            field = "json" if delta["type"] == "input_json_delta" else delta["type"].removesuffix("_delta")
            built[-1][field] += delta.get(field, delta.get("partial_json"))
    for block in built:
        said = block.pop("json")
        if block["type"] == "tool_use":
            block["input"] = json.loads(said)
    assert built == whole["content"]
    assert [event["type"] for event in (events[0], *events[-2:])] == ["message_start", "message_delta", "message_stop"]
    assert events[-2]["usage"] == whole["usage"]
    assert events[-2]["delta"]["stop_reason"] == whole["stop_reason"]


@pytest.mark.parametrize("say", [CALLS, REASONED])
def test_an_answer_comes_back_as_the_message_that_it_was(say):
    answer = AnthropicDialect().open(ASKED, None).answer(completion(say))
    assert messages_of(assistant(*answer["content"]), user(text("so?")))[0] == say


def test_arguments_that_are_no_object_are_kept_as_they_are():
    broken = {**CALLS, "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": '{"x": '}}]}
    answer = AnthropicDialect().open(ASKED, None).answer(completion(broken))
    assert answer["content"][1]["input"] == {"INVALID_JSON": '{"x": '}
    back = messages_of(assistant(*answer["content"]), user(text("so?")))[0]
    assert back["tool_calls"][0]["function"]["arguments"] == '{"x": '


def test_a_stop_string_that_was_not_asked_for_is_the_end_of_the_turn():
    told = completion({"role": "assistant", "content": "ok"})
    told["choices"][0]["stop_reason"] = "</s>"
    asked = {**ASKED, "stop_sequences": ["END"]}
    assert AnthropicDialect().open(asked, None).answer(told)["stop_reason"] == "end_turn"
    told["choices"][0]["stop_reason"] = "END"
    assert AnthropicDialect().open(asked, None).answer(told)["stop_sequence"] == "END"


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (401, "authentication_error"),
        (422, "invalid_request_error"),
        (429, "rate_limit_error"),
        (500, "api_error"),
    ],
)
def test_each_status_has_anthropics_name(status, kind):
    error = HttpError("it broke")
    error.status = status
    refused = AnthropicDialect().refusal(error)
    assert refused == {"type": "error", "error": {"type": kind, "message": "it broke"}}
