"""OpenAI's own SDK speaks responses to the server over a real socket."""

from __future__ import annotations

import json

import openai
import pytest
from openai import OpenAI
from pydantic import BaseModel

from ..samples import CALL_TEXT
from .trees import assert_one_branch, openai_client, records_of, rollout_url

CALCULATE = {
    "type": "function",
    "name": "calculate",
    "description": "Evaluate arithmetic.",
    "parameters": {
        "type": "object",
        "properties": {"expression": {"type": "string"}},
        "required": ["expression"],
        "additionalProperties": False,
    },
}
IDS = {"return_token_ids": True}
TWO_CALLS = f"Let me see.\n{CALL_TEXT}\n{CALL_TEXT.replace('12+30', '1+1')}"


def client_of(server, **options):
    return OpenAI(base_url=server.endpoint, api_key="none", max_retries=0, **options)


async def ask(client, stream, **asked):
    """One response, whole or by way of its events."""
    if not stream:
        return await client.responses.create(**asked)
    async with client.responses.stream(**asked) as events:
        async for _ in events:
            pass
        return await events.get_final_response()


def results(answer):
    """Outputs for all calls of an answer."""
    return [
        {"type": "function_call_output", "call_id": item.call_id, "output": "42"}
        for item in answer.output
        if item.type == "function_call"
    ]


def test_a_response_has_text_usage_and_the_exact_tokens(serve, tokenizer):
    server, sampler = serve(["The answer is 42."])
    answer = client_of(server).responses.create(
        model="tiny", input="12+30?", instructions="Be terse.", metadata={"a": "b"}, extra_body=IDS
    )
    assert answer.output_text == "The answer is 42."
    assert (answer.status, answer.object, answer.model) == ("completed", "response", "tiny")
    assert answer.id.startswith("resp_")
    assert (answer.instructions, answer.metadata, answer.error) == ("Be terse.", {"a": "b"}, None)
    assert answer.model_extra["token_ids"] == [*tokenizer.encode("The answer is 42."), tokenizer.eos_token_id]
    assert tuple(answer.model_extra["prompt_token_ids"]) == sampler.requests[0].prompt_ids
    prompt = tokenizer.decode(sampler.requests[0].prompt_ids)
    assert prompt.index("system\nBe terse.") < prompt.index("user\n12+30?")
    assert answer.usage.input_tokens == len(sampler.requests[0].prompt_ids)
    assert answer.usage.output_tokens == len(answer.model_extra["token_ids"])
    assert answer.usage.total_tokens == answer.usage.input_tokens + answer.usage.output_tokens
    assert answer.usage.input_tokens_details.cached_tokens == 5
    assert answer.usage.output_tokens_details.reasoning_tokens == 0


@pytest.mark.parametrize(("stream", "resend"), [(False, True), (True, False)])
@pytest.mark.parametrize("said", [TWO_CALLS, f"{CALL_TEXT}\nWait."])
async def test_a_tool_loop_is_one_branch_of_the_tree(serve, store, stream, resend, said):
    server, _ = serve([said, "The answer is 42.", "Yes."], store=store)
    rollout_id, url = await rollout_url(server, store)
    history: list = [{"role": "user", "content": "12+30?"}]
    asked = {"model": "tiny", "instructions": "Be terse.", "tools": [CALCULATE]}
    previous = None
    async with openai_client(url) as client:
        for further in (results, lambda _: [{"role": "user", "content": "Sure?"}], None):
            answer = await ask(client, stream, **asked, input=history, previous_response_id=previous)
            if further is None:
                break
            said_now = [item.model_dump(exclude_unset=True) for item in answer.output]
            history = [*history, *said_now, *further(answer)] if resend else further(answer)
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
        said = [*history, first.output[0].model_dump(exclude_unset=True)] if resend else []
        previous = None if resend else first.id
        second = await ask(client, stream, **asked, input=[*said, result], previous_response_id=previous)
        assert [item.type for item in second.output] == ["function_call"]
    assert "Changes files." in sampler.tokenizer.decode(sampler.requests[0].prompt_ids)
    assert "ok, changed" in sampler.tokenizer.decode(sampler.requests[1].prompt_ids)
    assert_one_branch(await records_of(store, rollout_id), calls=2)


@pytest.mark.parametrize(
    ("choice", "says"),
    [
        ({"type": "custom", "name": "apply_patch"}, PATCHED),
        ("required", PATCHED),
        ("auto", PATCHED.replace('"input"', '"x"')),
    ],
)
def test_the_input_of_a_custom_tool_is_told_in_events(serve, choice, says):
    server, _ = serve([says], tokens_per_delta=2)
    grammar = {"type": "grammar", "syntax": "lark", "definition": 'start: "x"'}
    raw = client_of(server).responses.with_raw_response.create(
        model="tiny", input="Go.", tools=[{**PATCH, "format": grammar}], tool_choice=choice, stream=True
    )
    assert raw.headers["x-ignored-parameters"] == "tools[0].format"
    events = list(raw.parse())
    told = "".join(event.delta for event in events if event.type == "response.custom_tool_call_input.delta")
    (done,) = [event.input for event in events if event.type == "response.custom_tool_call_input.done"]
    (item,) = [event.item for event in events if event.type == "response.output_item.done"]
    assert told == done == item.input == events[-1].response.output[0].input
    assert "Begin" in told


@pytest.mark.parametrize("said", [TWO_CALLS, "naïve 🙂", ""])
@pytest.mark.parametrize("options", [{}, {"max_output_tokens": 7}])
async def test_a_stream_ends_in_the_response_that_is_given_in_one_piece(serve, said, options):
    server, _ = serve([said], tokens_per_delta=2)
    asked = {"model": "tiny", "input": "12+30?", "tools": [CALCULATE], "extra_body": IDS, **options}
    async with openai_client(server.endpoint) as client:
        whole = (await client.responses.create(**asked)).to_dict()
        events = [event async for event in await client.responses.create(**asked, stream=True)]
    streamed = events[-1].response.to_dict()
    for response in (whole, streamed):
        response.pop("id")
        response.pop("created_at")
        for item in response["output"]:
            item.pop("id")
            item.pop("call_id", None)
    assert streamed == whole
    assert events[-1].type == f"response.{whole['status']}"


def test_the_events_come_in_openais_order(serve):
    server, _ = serve([f"Let me see.\n{CALL_TEXT}"], tokens_per_delta=4)
    events = list(client_of(server).responses.create(model="tiny", input="12+30?", tools=[CALCULATE], stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type.removeprefix("response.") for event in events]
    told_once = [kind for at, kind in enumerate(kinds) if at == 0 or kinds[at - 1] != kind]
    assert told_once == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    arguments = "".join(event.delta for event in events if event.type == "response.function_call_arguments.delta")
    assert text == "Let me see."
    assert json.loads(arguments) == {"expression": "12+30"}
    assert events[0].response.status == "in_progress"
    assert events[0].response.output == []


def test_an_answer_cut_short_is_incomplete_and_says_why(serve):
    server, _ = serve(["word " * 50])
    answer = client_of(server).responses.create(model="tiny", input="12+30?", max_output_tokens=3)
    assert answer.status == "incomplete"
    assert answer.incomplete_details.reason == "max_output_tokens"
    assert answer.output[-1].status == "incomplete"


async def test_parse_reads_calls_and_structured_text(serve):
    class Result(BaseModel):
        value: int

    server, sampler = serve([CALL_TEXT, '{"value": 42}'])
    async with openai_client(server.endpoint) as client:
        strict = {**CALCULATE, "strict": True}
        called = await client.responses.parse(model="tiny", input="12+30?", tools=[strict])
        told = await client.responses.parse(model="tiny", input="12+30?", text_format=Result)
    assert called.output[0].parsed_arguments == {"expression": "12+30"}
    assert told.output_parsed == Result(value=42)
    assert all(request.constraint is not None for request in sampler.requests)


def test_only_the_allowed_tools_are_shown(ok, tokenizer):
    server, sampler = ok
    allowed = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "calculate"}]}
    client_of(server).responses.create(
        model="tiny", input="12+30?", tools=[{"type": "function", "name": "look_up"}, CALCULATE], tool_choice=allowed
    )
    prompt = tokenizer.decode(sampler.requests[0].prompt_ids)
    assert "Evaluate arithmetic." in prompt
    assert "look_up" not in prompt


def test_a_response_can_be_fetched_and_deleted(ok):
    server, _ = ok
    client = client_of(server)
    answer = client.responses.create(model="tiny", input="12+30?")
    assert client.responses.retrieve(answer.id).to_dict() == answer.to_dict()
    client.responses.delete(answer.id)
    with pytest.raises(openai.NotFoundError, match="not found"):
        client.responses.retrieve(answer.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.delete(answer.id)


async def test_a_previous_response_that_is_not_kept_is_openais_error(serve, store):
    server, sampler = serve(["ok"], store=store)
    _, url = await rollout_url(server, store)
    async with openai_client(url) as client, openai_client(server.endpoint) as stranger:
        unstored = await client.responses.create(model="tiny", input="12+30?", store=False)
        stored = await client.responses.create(model="tiny", input="12+30?")
        for asking, previous in ((client, "resp_none"), (client, unstored.id), (stranger, stored.id)):
            with pytest.raises(openai.BadRequestError) as caught:
                await asking.responses.create(model="tiny", input="Sure?", previous_response_id=previous)
            assert caught.value.code == "previous_response_not_found"
            assert caught.value.param == "previous_response_id"
            assert caught.value.type == "invalid_request_error"
    assert len(sampler.requests) == 2


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"input": 3}, "input"),
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
        ({"tool_choice": "perhaps"}, "tool_choice"),
        ({"temperature": "hot"}, "temperature"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
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
        client_of(server).responses.create(**{"model": "tiny", "input": "12+30?"} | options)
    assert caught.value.param == param
    assert caught.value.type == "invalid_request_error"
    assert not sampler.requests


def test_a_stream_that_fails_on_its_way_ends_in_response_failed(serve, monkeypatch):
    server, sampler = serve(["The answer is 42."])
    said = sampler.complete

    async def breaks_off(request):
        async for delta in said(request):
            yield delta
            raise openai.OpenAIError("the sampler broke")

    monkeypatch.setattr(sampler, "complete", breaks_off)
    events = list(client_of(server).responses.create(model="tiny", input="12+30?", stream=True))
    assert events[-1].type == "response.failed"
    assert events[-1].response.status == "failed"
    assert events[-1].response.error.code == "server_error"


@pytest.mark.parametrize("stream", [False, True])
def test_the_items_that_a_response_was_given_can_be_read(serve, stream):
    server, _ = serve(["ok"])
    client = client_of(server)
    given = [
        {"role": "user", "content": "12+30?"},
        {"type": "function_call", "call_id": "c", "name": "calculate", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "42"},
        {"type": "message", "role": "user", "id": "msg_own", "content": [{"type": "input_text", "text": "Sure?"}]},
    ]
    answer = client.responses.create(model="tiny", input=given, stream=stream)
    if stream:
        answer = list(answer)[-1].response
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
