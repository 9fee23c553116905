"""Responses as chat completions and back, without a server."""

from __future__ import annotations

import json

import pytest

from mini_agentic_rl.gateway.dialects import ResponsesDialect
from mini_agentic_rl.gateway.errors import UnavailableError
from mini_agentic_rl.http import BadRequestError, HttpError

from .chunks import CALLS, REASONED, chunks, completion

ASKED = {"model": "tiny", "input": "12+30?"}


def chat_of(items, **fields):
    return ResponsesDialect().open({"model": "tiny", "input": items, **fields}, None).chat


def events_of(exchange, parts):
    """The events of a stream, as (name, data)."""
    sent = b"".join(exchange.events(part) for part in parts) + exchange.end()
    lines = [block.split(b"\n") for block in sent.split(b"\n\n") if block]
    return [(name.removeprefix(b"event: ").decode(), json.loads(data.removeprefix(b"data: "))) for name, data in lines]


def message(role, text, kind="input_text"):
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}


def call(call_id, arguments="{}"):
    return {"type": "function_call", "call_id": call_id, "name": "f", "arguments": arguments}


def output(call_id, value="42"):
    return {"type": "function_call_output", "call_id": call_id, "output": value}


def thought(text):
    return {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": text}]}


def shape(messages):
    """Messages as (role, content, calls, reasoning)."""
    return [
        (
            one["role"],
            one["content"],
            [made["id"] for made in one.get("tool_calls", ())],
            one.get("reasoning_content", ""),
        )
        for one in messages
    ]


USER, RESULT = ("user", "hi", [], ""), ("tool", "42", [], "")


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        ("hi", [USER]),
        ([{"role": "user", "content": "hi"}], [USER]),
        ([message("developer", "Be terse."), message("user", "hi")], [("system", "Be terse.", [], ""), USER]),
        (
            [{"role": "user", "content": [{"type": "input_text", "text": "h"}, {"type": "input_text", "text": "i"}]}],
            [USER],
        ),
        (
            [message("user", "hi"), message("assistant", "So", "output_text"), call("a"), call("b"), output("a")],
            [USER, ("assistant", "So", ["a", "b"], ""), RESULT],
        ),
        (
            [message("user", "hi"), call("a"), message("assistant", "Wait.", "output_text"), output("a")],
            [USER, ("assistant", "Wait.", ["a"], ""), RESULT],
        ),
        (
            [call("a"), output("a"), call("b"), output("b")],
            [("assistant", None, ["a"], ""), RESULT, ("assistant", None, ["b"], ""), RESULT],
        ),
        (
            [message("assistant", "One", "output_text"), message("assistant", "Two", "output_text")],
            [("assistant", "One", [], ""), ("assistant", "Two", [], "")],
        ),
        (
            [thought("hm"), message("assistant", "So", "output_text"), call("a"), output("a")],
            [("assistant", "So", ["a"], "hm"), RESULT],
        ),
        ([thought("hm"), call("a"), output("a")], [("assistant", None, ["a"], "hm"), RESULT]),
        (
            [thought("a"), call("a"), thought("b"), call("b"), output("a"), output("b")],
            [("assistant", None, ["a", "b"], "ab"), RESULT, RESULT],
        ),
        (
            [message("assistant", "So", "output_text"), thought("hm"), call("a"), output("a")],
            [("assistant", "So", [], ""), ("assistant", None, ["a"], "hm"), RESULT],
        ),
        (
            [{"type": "reasoning", "summary": [], "encrypted_content": "x"}, message("assistant", "So", "output_text")],
            [("assistant", "So", [], "")],
        ),
        ([thought("hm"), message("user", "hi")], [USER]),
        ([output("a", [{"type": "input_text", "text": "42"}])], [RESULT]),
    ],
)
def test_items_become_the_messages_that_they_came_from(items, expected):
    assert shape(chat_of(items)["messages"]) == expected


def test_images_are_handed_on_for_models_that_see():
    parts = [{"type": "input_text", "text": "what?"}, {"type": "input_image", "image_url": "data:x", "detail": "low"}]
    (told,) = chat_of([{"role": "user", "content": parts}])["messages"]
    assert told["content"] == [
        {"type": "text", "text": "what?"},
        {"type": "image_url", "image_url": {"url": "data:x", "detail": "low"}},
    ]


def test_every_option_has_its_field_in_the_chat_request():
    tool = {"type": "function", "name": "f", "description": "d", "parameters": {"type": "object"}, "strict": True}
    schema = {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}
    chat = chat_of(
        "hi",
        instructions="Be terse.",
        tools=[tool],
        tool_choice={"type": "function", "name": "f"},
        parallel_tool_calls=False,
        text={"format": schema},
        max_output_tokens=9,
        temperature=0.5,
        top_p=0.9,
        reasoning={"effort": "low"},
        user="me",
        seed=7,
        stop=["x"],
        stream=True,
    )
    assert chat == {
        "model": "tiny",
        "messages": [{"role": "system", "content": "Be terse."}, {"role": "user", "content": "hi"}],
        "tools": [
            {
                "type": "function",
                "function": {"name": "f", "description": "d", "parameters": {"type": "object"}, "strict": True},
            }
        ],
        "tool_choice": {"type": "function", "function": {"name": "f"}},
        "parallel_tool_calls": False,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "n", "schema": {"type": "object"}, "strict": True},
        },
        "max_tokens": 9,
        "temperature": 0.5,
        "top_p": 0.9,
        "reasoning_effort": "low",
        "user": "me",
        "seed": 7,
        "stop": ["x"],
        "stream": True,
        "stream_options": {"include_usage": True},
    }


@pytest.mark.parametrize("say", [CALLS, REASONED])
def test_an_upstreams_pieces_make_the_answer_that_it_gives_whole(say):
    exchange = ResponsesDialect().open(ASKED, None)
    events = events_of(exchange, chunks(say))
    (name, last), whole = events[-1], ResponsesDialect().open(ASKED, None).answer(completion(say))
    assert name == "response.completed"
    assert last["response"] == whole
    assert [data["type"] for _, data in events] == [name for name, _ in events]
    assert whole["usage"]["output_tokens_details"] == {"reasoning_tokens": 3}


def test_an_answer_continues_as_the_message_that_it_was():
    for say in (CALLS, REASONED):
        dialect = ResponsesDialect()
        answer = dialect.open(ASKED, None).answer(completion(say))
        by_id = dialect.open({**ASKED, "previous_response_id": answer["id"]}, None).chat["messages"][1]
        resent = dialect.open({**ASKED, "input": answer["output"]}, None).chat["messages"][0]
        assert by_id == resent == completion(say)["choices"][0]["message"]


def test_instructions_are_not_carried_over():
    dialect = ResponsesDialect()
    answer = dialect.open({**ASKED, "instructions": "Be terse."}, None).answer(completion(CALLS))
    later = dialect.open({**ASKED, "previous_response_id": answer["id"]}, None)
    assert [one["role"] for one in later.chat["messages"]] == ["user", "assistant", "user"]


def test_a_stream_that_fails_before_anything_was_said_still_begins():
    exchange = ResponsesDialect().open(ASKED, None)
    sent = exchange.failed(UnavailableError("gone")).decode()
    kinds = [line.removeprefix("event: ") for line in sent.splitlines() if line.startswith("event: ")]
    assert kinds == ["response.created", "response.in_progress", "response.failed"]


def test_an_error_names_the_fields_of_responses():
    refused = ResponsesDialect().refusal(BadRequestError("response_format: no", param="response_format.schema"))
    assert refused["error"]["param"] == "text.format"
    assert refused["error"]["message"] == "text.format: no"
    same = HttpError("it broke", code="c")
    assert ResponsesDialect().refusal(same) == same.body()
