"""Responses: translated to chat completions and back, kept within bounds, and OpenAI's SDK against the server."""

from __future__ import annotations

import itertools
import json
import tracemalloc

import openai
import pytest
from openai import OpenAI

from mini_agentic_rl.gateway.dialects import ResponsesDialect
from mini_agentic_rl.gateway.dialects.responses_input import ResponseMemory
from mini_agentic_rl.gateway.errors import NotFoundError, UnavailableError
from mini_agentic_rl.http import BadRequestError, HttpError

from ..samples import CALL_TEXT, FUNCTION, TWO_CALLS, assert_one_branch, openai_client, records_of, rollout_url
from .chunks import CALLS, CUT, REASONED, chunks, completion

ASKED = {"model": "tiny", "input": "12+30?"}


def chat_of(items, **fields):
    return ResponsesDialect().open({"model": "tiny", "input": items, **fields}, None).chat


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
            item["role"],
            item["content"],
            [made["id"] for made in item.get("tool_calls", ())],
            item.get("reasoning_content", ""),
        )
        for item in messages
    ]


USER, RESULT = ("user", "hi", [], ""), ("tool", "42", [], "")
SO = message("assistant", "So", "output_text")


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        ("hi", [USER]),
        ([message("developer", "Be terse."), message("user", "hi")], [("system", "Be terse.", [], ""), USER]),
        (
            [
                {"role": "user", "content": [{"type": "input_text", "text": "h"}, {"type": "input_text", "text": "i"}]},
                *(thought("hm"), SO, call("a"), call("b"), output("a", [{"type": "input_text", "text": "42"}])),
                *(call("c"), message("assistant", "Wait.", "output_text"), output("c")),
                *(SO, message("assistant", "Two", "output_text")),
            ],
            [
                *(USER, ("assistant", "So", ["a", "b"], "hm"), RESULT),
                *(("assistant", "Wait.", ["c"], ""), RESULT),
                *(("assistant", "So", [], ""), ("assistant", "Two", [], "")),
            ],
        ),
        (
            [thought("a"), call("a"), thought("b"), call("b"), output("a"), output("b")],
            [("assistant", None, ["a", "b"], "ab"), RESULT, RESULT],
        ),
        ([SO, thought("hm"), call("a")], [("assistant", "So", [], ""), ("assistant", None, ["a"], "hm")]),
        ([{"type": "reasoning", "summary": [], "encrypted_content": "x"}, SO], [("assistant", "So", [], "")]),
        ([thought("hm"), message("user", "hi")], [USER]),
    ],
)
def test_items_become_the_messages_that_they_came_from(items, expected):
    assert shape(chat_of(items)["messages"]) == expected


def test_images_are_passed_on():
    parts = [{"type": "input_text", "text": "what?"}, {"type": "input_image", "image_url": "data:x", "detail": "low"}]
    (read,) = chat_of([{"role": "user", "content": parts}])["messages"]
    assert read["content"] == [
        {"type": "text", "text": "what?"},
        {"type": "image_url", "image_url": {"url": "data:x", "detail": "low"}},
    ]


def test_every_option_has_its_field_in_the_chat_request():
    function = {"name": "f", "description": "d", "parameters": {"type": "object"}, "strict": True}
    schema = {"name": "n", "schema": {"type": "object"}, "strict": True}
    chat = chat_of(
        "hi",
        instructions="Be terse.",
        tools=[{"type": "function", **function}],
        tool_choice={"type": "function", "name": "f"},
        parallel_tool_calls=False,
        text={"format": {"type": "json_schema", **schema}},
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
        "tools": [{"type": "function", "function": function}],
        "tool_choice": {"type": "function", "function": {"name": "f"}},
        "parallel_tool_calls": False,
        "response_format": {"type": "json_schema", "json_schema": schema},
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
    form = {"type": "json_object", "schema": {"type": "object"}}
    assert chat_of("hi", text={"format": form})["response_format"] == form
    allowed = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]}
    names = [{"type": "function", "function": {"name": "f"}}]
    chat = chat_of("hi", tools=[{"type": "function", **function}], tool_choice=allowed)
    assert chat["tool_choice"] == {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": names}}


@pytest.mark.parametrize("answered", [CALLS, REASONED, CUT])
def test_an_upstreams_chunks_make_the_whole_response_which_continues_as_its_message(answered):
    exchange = ResponsesDialect().open(ASKED, None)
    sent = b"".join(exchange.events(part) for part in chunks(answered)) + exchange.end()
    lines = [block.split(b"\n") for block in sent.split(b"\n\n") if block]
    names = [name.removeprefix(b"event: ").decode() for name, _ in lines]
    events = [json.loads(data.removeprefix(b"data: ")) for _, data in lines]
    dialect = ResponsesDialect()
    whole = dialect.open({**ASKED, "instructions": "Be terse."}, None).answer(completion(answered))
    cut = answered is CUT
    assert whole["status"] == whole["output"][-1]["status"] == ("incomplete" if cut else "completed")
    assert whole["incomplete_details"] == ({"reason": "max_output_tokens"} if cut else None)
    assert names[-1] == f"response.{whole['status']}"
    assert events[-1]["response"] == whole | {"instructions": None}
    assert [event["type"] for event in events] == names
    assert whole["usage"]["output_tokens_details"] == {"reasoning_tokens": 3}
    by_id = dialect.open({**ASKED, "previous_response_id": whole["id"]}, None).chat["messages"]
    assert [one["role"] for one in by_id] == ["user", "assistant", "user"]  # without the instructions
    resent = dialect.open({**ASKED, "input": whole["output"]}, None).chat["messages"][0]
    assert by_id[1] == resent == answered


def test_a_stream_that_fails_at_once_still_begins_and_errors_name_the_fields_of_responses():
    exchange = ResponsesDialect().open(ASKED, None)
    sent = exchange.failed(UnavailableError("gone")).decode()
    kinds = [line.removeprefix("event: ") for line in sent.splitlines() if line.startswith("event: ")]
    assert kinds == ["response.created", "response.in_progress", "response.failed"]
    refused = ResponsesDialect().refusal(BadRequestError("response_format: no", param="response_format.schema"))
    assert (refused["error"]["param"], refused["error"]["message"]) == ("text.format", "text.format: no")
    same = HttpError("it broke", code="c")
    assert ResponsesDialect().refusal(same) == same.body()


SCOPE = ("rollout", "attempt")


def keep(memory, name, previous=None, text="x" * 100):
    earlier = memory.find(SCOPE, previous).messages if previous else ()
    memory.keep(SCOPE, {"id": name}, earlier, [{"role": "assistant", "content": text}], [])


def test_kept_responses_are_bounded_in_number_and_bytes_and_the_least_recently_used_is_dropped_first():
    memory = ResponseMemory(max_responses=2)
    keep(memory, "a")
    keep(memory, "b", previous="a")
    memory.find(SCOPE, "a")
    keep(memory, "c", previous="a")
    assert len(memory) == 2
    assert len(memory.find(SCOPE, "c").messages) == 2
    with pytest.raises(NotFoundError):
        memory.find(SCOPE, "b")
    memory = ResponseMemory(max_bytes=5000)
    keep(memory, "0")
    for number in range(1, 20):
        keep(memory, str(number), previous=str(number - 1), text="x" * 10)
    assert 0 < len(memory) < 5
    before = len(memory)
    keep(memory, "huge", text="x" * 6000)
    assert len(memory) == before
    assert memory.find(SCOPE, "19")


def test_small_conversations_take_no_more_memory_than_is_counted():
    bound = 500_000
    memory = ResponseMemory(max_bytes=bound)
    tracemalloc.start()
    for number in range(400):
        memory.keep(SCOPE, {"id": str(number)}, (), [{"role": "user", "content": "a"} for _ in range(20)], [])
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(memory) < 400
    assert bound / 2 < held < bound


def test_an_owner_forgets_only_its_conversations_which_continue_after_a_deletion():
    memory = ResponseMemory()
    keep(memory, "a")
    memory.keep(None, {"id": "b"}, (), [], [])
    keep(memory, "c", previous="a")
    memory.delete(SCOPE, "a")
    assert len(memory.find(SCOPE, "c").messages) == 2
    memory.forget(SCOPE)
    with pytest.raises(NotFoundError):
        memory.find(SCOPE, "c")
    assert memory.find(None, "b")


CALCULATE = {"type": "function", **FUNCTION}


def client_of(server):
    return OpenAI(base_url=server.endpoint, api_key="none", max_retries=0)


async def ask(client, stream, **asked):
    """One response, whole or by way of its events."""
    if not stream:
        return await client.responses.create(**asked)
    async with client.responses.stream(**asked) as events:
        async for _ in events:
            pass
        return await events.get_final_response()


@pytest.mark.parametrize(
    ("stream", "resend", "first"), [(False, True, TWO_CALLS), (True, False, f"{CALL_TEXT}\nWait.")]
)
async def test_a_tool_loop_is_one_branch_of_the_tree(serve, store, stream, resend, first):
    server, _ = serve([first, "The answer is 42.", "Yes."], store=store)
    rollout_id, url = await rollout_url(server, store)
    history: list = [{"role": "user", "content": "12+30?"}]
    asked = {"model": "tiny", "instructions": "Be terse.", "tools": [CALCULATE]}
    previous = None
    async with openai_client(url) as client:
        for _ in range(3):
            answer = await ask(client, stream, **asked, input=history, previous_response_id=previous)
            results = [output(item.call_id) for item in answer.output if item.type == "function_call"]
            further = results or [{"role": "user", "content": "Sure?"}]
            items = [item.model_dump(exclude_unset=True) for item in answer.output]
            history = [*history, *items, *further] if resend else further
            previous = None if resend else answer.id
    assert answer.output_text == "Yes."
    assert_one_branch(await records_of(store, rollout_id), calls=3)
    counters = server.service.memory.counters()
    assert (counters["continued"], counters["forked"], counters["rendered"]) == (2, 0, 1)


PATCH = {"type": "custom", "name": "apply_patch", "description": "Changes files."}
PATCHED = '<tool_call>\n{"name": "apply_patch", "arguments": {"input": "*** Begin\\n+\\"é\\"\\n"}}\n</tool_call>'


@pytest.mark.parametrize(("stream", "resend"), [(False, True), (True, False)])
async def test_a_tool_whose_input_is_text_is_called_and_its_output_goes_on(serve, store, stream, resend):
    server, sampler = serve([PATCHED, CALL_TEXT, "Done."], store=store)
    rollout_id, url = await rollout_url(server, store)
    history: list = [{"role": "user", "content": "Change it."}]
    asked = {"model": "tiny", "tools": [CALCULATE, PATCH]}
    async with openai_client(url) as client:
        first = await ask(client, stream, **asked, input=history)
        assert [(item.type, item.name, item.input) for item in first.output] == [
            ("custom_tool_call", "apply_patch", '*** Begin\n+"é"\n')
        ]
        result = {"type": "custom_tool_call_output", "call_id": first.output[0].call_id, "output": "ok, changed"}
        resent = [*history, first.output[0].model_dump(exclude_unset=True)] if resend else []
        previous = None if resend else first.id
        second = await ask(client, stream, **asked, input=[*resent, result], previous_response_id=previous)
        assert [item.type for item in second.output] == ["function_call"]
    assert "Changes files." in sampler.tokenizer.decode(sampler.requests[0].prompt_ids)
    assert "ok, changed" in sampler.tokenizer.decode(sampler.requests[1].prompt_ids)
    assert_one_branch(await records_of(store, rollout_id), calls=2)


@pytest.mark.parametrize(
    ("choice", "content"),
    [({"type": "custom", "name": "apply_patch"}, PATCHED), ("auto", PATCHED.replace('"input"', '"x"'))],
)
def test_the_input_of_a_custom_tool_is_sent_in_events(serve, choice, content):
    server, _ = serve([content], tokens_per_delta=2)
    grammar = {"type": "grammar", "syntax": "lark", "definition": 'start: "x"'}
    raw = client_of(server).responses.with_raw_response.create(
        model="tiny", input="Go.", tools=[{**PATCH, "format": grammar}], tool_choice=choice, stream=True
    )
    assert raw.headers["x-ignored-parameters"] == "tools[0].format"
    events = list(raw.parse())
    streamed = "".join(event.delta for event in events if event.type == "response.custom_tool_call_input.delta")
    (done,) = [event.input for event in events if event.type == "response.custom_tool_call_input.done"]
    (item,) = [event.item for event in events if event.type == "response.output_item.done"]
    assert streamed == done == item.input == events[-1].response.output[0].input
    assert "Begin" in streamed


def test_the_events_come_in_openais_order(serve):
    server, _ = serve([f"Let me see.\n{CALL_TEXT}"], tokens_per_delta=4)
    events = list(client_of(server).responses.create(**ASKED, tools=[CALCULATE], stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [kind for kind, _ in itertools.groupby(event.type.removeprefix("response.") for event in events)]
    text = "content_part.added output_text.delta output_text.done content_part.done"
    call = "function_call_arguments.delta function_call_arguments.done"
    item, done = "output_item.added", "output_item.done"
    assert " ".join(kinds) == f"created in_progress {item} {text} {done} {item} {call} {done} completed"
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    arguments = "".join(event.delta for event in events if event.type == "response.function_call_arguments.delta")
    assert text == "Let me see."
    assert json.loads(arguments) == {"expression": "12+30"}
    assert events[0].response.status == "in_progress"
    assert events[0].response.output == []


async def test_a_response_is_fetched_continued_and_deleted_within_its_scope_only(serve, store):
    server, sampler = serve(["ok"], store=store)
    _, url = await rollout_url(server, store)
    async with openai_client(url) as client, openai_client(server.endpoint) as stranger:
        unstored = await client.responses.create(**ASKED, store=False)
        stored = await client.responses.create(**ASKED)
        assert (await client.responses.retrieve(stored.id)).to_dict() == stored.to_dict()
        for asking, previous in ((client, "resp_none"), (client, unstored.id), (stranger, stored.id)):
            with pytest.raises(openai.BadRequestError) as caught:
                await asking.responses.create(**ASKED, previous_response_id=previous)
            assert caught.value.code == "previous_response_not_found"
            assert caught.value.param == "previous_response_id"
            assert caught.value.type == "invalid_request_error"
        assert len(sampler.requests) == 2
        await client.responses.delete(stored.id)
        with pytest.raises(openai.NotFoundError, match="not found"):
            await client.responses.retrieve(stored.id)
        with pytest.raises(openai.NotFoundError):
            await client.responses.delete(stored.id)


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"input": []}, "input"),
        ({"input": [{"type": "message", "role": "wizard", "content": "hi"}]}, "input[0].role"),
        ({"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}]}, "input[0].content[0]"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0]"),
        ({"input": [{"type": "function_call", "call_id": "c", "name": "f"}]}, "input[0].arguments"),
        ({"input": [{"type": "function_call", "call_id": "c", "arguments": "{}"}]}, "input[0].name"),
        ({"input": [{"type": "function_call_output", "output": "42"}]}, "input[0].call_id"),
        ({"tools": [{"type": "web_search"}]}, "tools[0]"),
        ({"tools": [{"type": "function"}]}, "tools[0]"),
        ({"tools": [CALCULATE], "tool_choice": {"type": "function", "name": "x"}}, "tool_choice"),
        ({"tools": [CALCULATE], "tool_choice": {"type": "web_search"}}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"text": {"format": {"type": "poem"}}}, "text.format"),
        ({"background": True}, "background"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"extra_body": {"seed": "x"}}, "seed"),
        ({"input": "x" * 5000}, "input"),
    ],
)
def test_a_bad_value_is_refused_with_the_name_of_its_field(ok, options, param):
    server, sampler = ok
    with pytest.raises(openai.BadRequestError) as caught:
        client_of(server).responses.create(**ASKED | options)
    assert caught.value.param == param
    assert caught.value.type == "invalid_request_error"
    assert not sampler.requests


def test_the_items_that_a_response_was_given_can_be_read(ok):
    client = client_of(ok[0])
    given = [
        {"role": "user", "content": "12+30?"},
        {"type": "function_call", "call_id": "c", "name": "calculate", "arguments": "{}"},
        output("c"),
        {"type": "message", "role": "user", "id": "msg_own", "content": [{"type": "input_text", "text": "Sure?"}]},
    ]
    answer = list(client.responses.create(model="tiny", input=given, stream=True))[-1].response
    items = list(client.responses.input_items.list(answer.id, order="asc"))
    assert [item.type for item in items] == ["message", "function_call", "function_call_output", "message"]
    assert items[0].content[0].text == "12+30?"
    assert items[3].id == "msg_own"
    assert len({item.id for item in items}) == 4
    assert list(client.responses.input_items.list(answer.id)) == items[::-1]
    assert list(client.responses.input_items.list(answer.id, order="asc", limit=1)) == items
    text = client.responses.create(model="tiny", input="hi")
    assert [item.content[0].text for item in client.responses.input_items.list(text.id)] == ["hi"]
    with pytest.raises(openai.NotFoundError, match="not found"):
        client.responses.input_items.list("resp_none")
    with pytest.raises(openai.BadRequestError, match="order"):
        client.responses.input_items.list(answer.id, order="random")
