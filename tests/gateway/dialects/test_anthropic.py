"""Anthropic messages: translated to chat completions and back, and Anthropic's SDK against the server."""

from __future__ import annotations

import json

import anthropic
import pytest
from anthropic import Anthropic, AsyncAnthropic

from mini_agentic_rl.gateway.dialects import AnthropicDialect
from mini_agentic_rl.http import HttpError

from ..samples import CALL_TEXT, FUNCTION, QUESTION, TWO_CALLS, assert_one_branch, records_of, rollout_url
from .chunks import CALLS, CUT, REASONED, chunks, completion

ASKED = {"model": "tiny", "max_tokens": 200, "messages": QUESTION}


def chat_of(**fields):
    return AnthropicDialect().open({**ASKED, **fields}, None).chat


def messages_of(*messages):
    return chat_of(messages=list(messages))["messages"]


def user(*blocks):
    return {"role": "user", "content": list(blocks)}


def assistant(*blocks):
    return {"role": "assistant", "content": list(blocks)}


def text(content):
    return {"type": "text", "text": content, "cache_control": {"type": "ephemeral"}}


def use(call_id, given):
    return {"type": "tool_use", "id": call_id, "name": "f", "input": given}


def result(call_id, content="42", failed=False):
    return {"type": "tool_result", "tool_use_id": call_id, "content": content, "is_error": failed}


def test_blocks_of_an_answer_become_one_message_and_each_result_a_message():
    messages = messages_of(
        user(text("12+30?")),
        assistant(
            {"type": "thinking", "thinking": "hm", "signature": "s"},
            {"type": "redacted_thinking", "data": "x"},
            text("Let me see."),
            use("a", {"x": 1}),
            use("b", {}),
        ),
        user(text("Go on."), result("a", "1/0", failed=True), result("b", [text("4"), text("2")])),
        assistant(),
        {"role": "system", "content": "Be terse."},
        user(text("so?")),
    )
    assert messages == [
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
        {"role": "tool", "tool_call_id": "a", "content": "error: 1/0"},
        {"role": "tool", "tool_call_id": "b", "content": "4\n2"},
        {"role": "user", "content": "Go on."},
        {"role": "assistant", "content": ""},
        {"role": "system", "content": "Be terse."},
        {"role": "user", "content": "so?"},
    ]
    for system in ("Be terse.\nNow.", [text("Be terse."), text("Now.")]):
        assert chat_of(system=system)["messages"][0] == {"role": "system", "content": "Be terse.\nNow."}


@pytest.mark.parametrize(
    ("source", "url"),
    [
        ({"type": "url", "url": "http://x/y.png"}, "http://x/y.png"),
        ({"type": "base64", "media_type": "image/png", "data": "AAAA"}, "data:image/png;base64,AAAA"),
    ],
)
def test_images_are_passed_on(source, url):
    (message,) = messages_of(user(text("what?"), {"type": "image", "source": source}))
    assert message["content"] == [{"type": "text", "text": "what?"}, {"type": "image_url", "image_url": {"url": url}}]


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
    function = {"name": "f", "description": "d", "parameters": schema, "strict": True}
    earlier_name = chat_of(output_format={"type": "json_schema", "schema": schema})
    assert earlier_name["response_format"] == chat["response_format"]
    assert chat == {
        "model": "tiny",
        "messages": QUESTION,
        "max_tokens": 200,
        "tools": [{"type": "function", "function": function}],
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


@pytest.mark.parametrize(("message", "reason"), [(CALLS, "tool_use"), (REASONED, "end_turn"), (CUT, "max_tokens")])
def test_an_upstreams_chunks_make_the_blocks_of_the_whole_answer_which_comes_back_as_its_message(message, reason):
    exchange = AnthropicDialect().open(ASKED, None)
    sent = b"".join(exchange.events(part) for part in chunks(message)) + exchange.end()
    events = [json.loads(line[6:]) for line in sent.split(b"\n") if line.startswith(b"data: ")]
    whole = AnthropicDialect().open(ASKED, None).answer(completion(message))
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
        arguments = block.pop("json")
        if block["type"] == "tool_use":
            block["input"] = json.loads(arguments)
    assert built == whole["content"]
    assert [event["type"] for event in (events[0], *events[-2:])] == ["message_start", "message_delta", "message_stop"]
    assert events[-2]["usage"] == whole["usage"]
    assert events[-2]["delta"]["stop_reason"] == whole["stop_reason"] == reason
    assert messages_of(assistant(*whole["content"]), user(text("so?")))[0] == message


def test_arguments_that_are_no_object_are_kept_as_they_are():
    broken = {**CALLS, "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": '{"x": '}}]}
    answer = AnthropicDialect().open(ASKED, None).answer(completion(broken))
    assert answer["content"][1]["input"] == {"INVALID_JSON": '{"x": '}
    back = messages_of(assistant(*answer["content"]), user(text("so?")))[0]
    assert back["tool_calls"][0]["function"]["arguments"] == '{"x": '


def test_a_stop_string_that_the_client_did_not_send_is_the_end_of_the_turn():
    answer = completion({"role": "assistant", "content": "ok"})
    answer["choices"][0]["stop_reason"] = "</s>"
    asked = {**ASKED, "stop_sequences": ["END"]}
    assert AnthropicDialect().open(asked, None).answer(answer)["stop_reason"] == "end_turn"
    answer["choices"][0]["stop_reason"] = "END"
    assert AnthropicDialect().open(asked, None).answer(answer)["stop_sequence"] == "END"


def test_each_status_has_anthropics_name():
    names = {401: "authentication_error", 422: "invalid_request_error", 429: "rate_limit_error", 500: "api_error"}
    for status, kind in names.items():
        error = HttpError("it broke")
        error.status = status
        refused = AnthropicDialect().refusal(error)
        assert refused == {"type": "error", "error": {"type": kind, "message": "it broke"}}


CALCULATE = {"name": FUNCTION["name"], "input_schema": FUNCTION["parameters"]}
IDS = {"return_token_ids": True}


def root_of(url: str) -> str:
    """The SDK adds /v1 by itself."""
    return url.removesuffix("/v1")


def client_of(server):
    return Anthropic(base_url=root_of(server.endpoint), api_key="none", max_retries=0)


async def ask(client, stream, **asked):
    """One message, whole or by way of its events."""
    if not stream:
        return await client.messages.create(**asked)
    async with client.messages.stream(**asked) as events:
        return await events.get_final_message()


@pytest.mark.parametrize(("stream", "first"), [(False, TWO_CALLS), (True, f"{CALL_TEXT}\nWait.")])
async def test_a_tool_loop_is_one_branch_of_the_tree(serve, store, stream, first):
    server, _ = serve([first, "The answer is 42.", "Yes."], store=store)
    rollout_id, url = await rollout_url(server, store)
    asked = {"model": "tiny", "max_tokens": 200, "system": "Be terse.", "tools": [CALCULATE]}
    messages: list = list(QUESTION)
    async with AsyncAnthropic(base_url=root_of(url), api_key="none", max_retries=0) as client:
        for _ in range(3):
            answer = await ask(client, stream, **asked, messages=messages)
            calls = [block for block in answer.content if block.type == "tool_use"]
            messages.append({"role": "assistant", "content": [block.to_dict() for block in answer.content]})
            messages.append({"role": "user", "content": [result(call.id) for call in calls] or "Sure?"})
    assert answer.content[0].text == "Yes."
    assert_one_branch(await records_of(store, rollout_id), calls=3)
    counters = server.service.memory.counters()
    assert (counters["continued"], counters["forked"], counters["rendered"]) == (2, 0, 1)


def test_the_events_come_in_anthropics_order_and_carry_the_ids(serve, tokenizer):
    server, sampler = serve([f"Let me see.\n{CALL_TEXT}"], tokens_per_delta=4)
    events = list(client_of(server).messages.create(**ASKED, tools=[CALCULATE], stream=True, extra_body=IDS))
    kinds = [event.type for event in events]
    distinct = [kind for at, kind in enumerate(kinds) if at == 0 or kinds[at - 1] != kind]
    block = ["content_block_start", "content_block_delta", "content_block_stop"]
    assert distinct == ["message_start", *block, *block, "message_delta", "message_stop"]
    assert tuple(events[0].message.model_extra["prompt_token_ids"]) == sampler.requests[0].prompt_ids
    assert tokenizer.decode(events[-2].model_extra["token_ids"]) == f"Let me see.\n{CALL_TEXT}<|im_end|>"
    assert events[-2].delta.stop_reason == "tool_use"
    assert events[-2].usage.input_tokens == len(sampler.requests[0].prompt_ids) - 5


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"messages": [{"role": "wizard", "content": "hi"}]}, "messages"),
        ({"messages": [user({"type": "document"})]}, r"messages\[0\].content\[0\]"),
        ({"messages": [user({"type": "tool_result"})]}, "tool_use_id"),
        ({"messages": [*QUESTION, assistant(use("a", {}))]}, "the last message has to be text"),
        ({"messages": [assistant({"type": "tool_use"}), *QUESTION]}, "tool_use needs"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "web_search_20250305"),
        ({"tools": [{"name": "x"}]}, "input_schema"),
        ({"tools": [CALCULATE], "tool_choice": {"type": "tool", "name": "x"}}, "tool_choice"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"output_config": {"format": {"type": "poem"}}}, "output_config.format"),
        ({"messages": [{"role": "user", "content": "x" * 5000}]}, "maximum context length"),
    ],
)
def test_a_bad_value_is_refused_in_anthropics_shape(ok, options, named):
    server, sampler = ok
    with pytest.raises(anthropic.BadRequestError, match=named) as caught:
        client_of(server).messages.create(**ASKED | options)
    assert caught.value.body["type"] == "error"
    assert caught.value.body["error"]["type"] == "invalid_request_error"
    assert not sampler.requests


def test_models_are_listed_in_anthropics_shape(ok):
    client = client_of(ok[0])
    models = list(client.models.list())
    assert [(model.type, model.id, model.display_name) for model in models] == [
        ("model", name, name) for name in ("tiny", "base", "default")
    ]
    assert client.models.retrieve("tiny") == models[0]
    with pytest.raises(anthropic.NotFoundError):
        client.models.retrieve("none")
