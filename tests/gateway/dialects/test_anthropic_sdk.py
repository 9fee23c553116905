"""Anthropic's own SDK against the server over a real socket."""

from __future__ import annotations

import anthropic
import pytest
from anthropic import Anthropic, AsyncAnthropic

from ..samples import CALL_TEXT
from .trees import assert_one_branch, records_of, rollout_url

CALCULATE = {
    "name": "calculate",
    "description": "Evaluate arithmetic.",
    "input_schema": {
        "type": "object",
        "properties": {"expression": {"type": "string"}},
        "required": ["expression"],
    },
}
QUESTION = [{"role": "user", "content": "12+30?"}]
ASKED = {"model": "tiny", "max_tokens": 200, "messages": QUESTION}
IDS = {"return_token_ids": True}
ASKING = {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "calculate", "input": {}}]}
TWO_CALLS = f"Let me see.\n{CALL_TEXT}\n{CALL_TEXT.replace('12+30', '1+1')}"


def root_of(url: str) -> str:
    """The SDK adds /v1 by itself."""
    return url.removesuffix("/v1")


def client_of(server, key="none"):
    return Anthropic(base_url=root_of(server.endpoint), api_key=key, max_retries=0)


async def ask(client, stream, **asked):
    """One message, whole or by way of its events."""
    if not stream:
        return await client.messages.create(**asked)
    async with client.messages.stream(**asked) as events:
        return await events.get_final_message()


def told(answer):
    """What a message says, without its ids."""
    fields = ("type", "text", "name", "input")
    blocks = [{name: block.to_dict().get(name) for name in fields} for block in answer.content]
    return blocks, answer.stop_reason, answer.stop_sequence, answer.usage.to_dict(), answer.model


def results(answer):
    """A user's turn with the results of all calls."""
    calls = [block for block in answer.content if block.type == "tool_use"]
    return [{"type": "tool_result", "tool_use_id": call.id, "content": "42"} for call in calls]


def test_a_message_has_text_usage_and_the_exact_tokens(serve, tokenizer):
    server, sampler = serve(["The answer is 42."])
    answer = client_of(server).messages.create(**ASKED, system=[{"type": "text", "text": "Be terse."}], extra_body=IDS)
    assert [(block.type, block.text) for block in answer.content] == [("text", "The answer is 42.")]
    assert (answer.type, answer.role, answer.model, answer.stop_reason) == ("message", "assistant", "tiny", "end_turn")
    assert answer.id.startswith("msg_")
    assert answer.model_extra["token_ids"] == [*tokenizer.encode("The answer is 42."), tokenizer.eos_token_id]
    prompt_ids = sampler.requests[0].prompt_ids
    assert tuple(answer.model_extra["prompt_token_ids"]) == prompt_ids
    assert "system\nBe terse." in tokenizer.decode(prompt_ids)
    assert answer.usage.cache_read_input_tokens == 5
    assert answer.usage.input_tokens == len(prompt_ids) - 5
    assert answer.usage.output_tokens == len(answer.model_extra["token_ids"])


@pytest.mark.parametrize(("failed", "said"), [(True, "error: division by zero"), (False, "division by zero")])
def test_the_model_is_told_that_a_tool_failed(serve, tokenizer, failed, said):
    server, sampler = serve(["I see."])
    use = {"type": "tool_use", "id": "call_1", "name": "calculate", "input": {"expression": "1/0"}}
    result = {"type": "tool_result", "tool_use_id": "call_1", "content": "division by zero", "is_error": failed}
    turns = [{"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
    client_of(server).messages.create(model="tiny", max_tokens=20, messages=[*QUESTION, *turns], tools=[CALCULATE])
    assert f"\n{said}\n" in tokenizer.decode(sampler.requests[0].prompt_ids)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("said", [TWO_CALLS, f"{CALL_TEXT}\nWait."])
async def test_a_tool_loop_is_one_branch_of_the_tree(serve, store, stream, said):
    server, _ = serve([said, "The answer is 42.", "Yes."], store=store)
    rollout_id, url = await rollout_url(server, store)
    messages: list = list(QUESTION)
    async with AsyncAnthropic(base_url=root_of(url), api_key="none", max_retries=0) as client:
        for further in (results, lambda _: "Sure?", None):
            answer = await ask(
                client, stream, model="tiny", max_tokens=200, system="Be terse.", messages=messages, tools=[CALCULATE]
            )
            if further is None:
                break
            messages.append({"role": "assistant", "content": [block.to_dict() for block in answer.content]})
            messages.append({"role": "user", "content": further(answer)})
    assert answer.content[0].text == "Yes."
    assert_one_branch(await records_of(store, rollout_id), calls=3)
    counters = server.service.memory.counters()
    assert (counters["continued"], counters["forked"], counters["rendered"]) == (2, 0, 1)


@pytest.mark.parametrize("said", [TWO_CALLS, "<tool_call>{broken</tool_call>", "naïve 🙂", ""])
@pytest.mark.parametrize("options", [{}, {"max_tokens": 7}, {"stop_sequences": ["er", "zz"]}])
async def test_a_stream_ends_in_the_message_that_is_given_in_one_piece(serve, said, options):
    server, _ = serve([said], tokens_per_delta=2)
    asked = {**ASKED, "tools": [CALCULATE], **options}
    async with AsyncAnthropic(base_url=root_of(server.endpoint), api_key="none", max_retries=0) as client:
        whole, streamed = [told(await ask(client, stream, **asked)) for stream in (False, True)]
    assert streamed == whole


def test_the_events_come_in_anthropics_order_and_carry_the_ids(serve, tokenizer):
    server, sampler = serve([f"Let me see.\n{CALL_TEXT}"], tokens_per_delta=4)
    events = list(client_of(server).messages.create(**ASKED, tools=[CALCULATE], stream=True, extra_body=IDS))
    kinds = [event.type for event in events]
    told_once = [kind for at, kind in enumerate(kinds) if at == 0 or kinds[at - 1] != kind]
    block = ["content_block_start", "content_block_delta", "content_block_stop"]
    assert told_once == ["message_start", *block, *block, "message_delta", "message_stop"]
    assert tuple(events[0].message.model_extra["prompt_token_ids"]) == sampler.requests[0].prompt_ids
    assert tokenizer.decode(events[-2].model_extra["token_ids"]) == f"Let me see.\n{CALL_TEXT}<|im_end|>"
    assert events[-2].delta.stop_reason == "tool_use"
    assert events[-2].usage.input_tokens == len(sampler.requests[0].prompt_ids) - 5


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("said", "options", "reason", "sequence"),
    [
        ("ok", {}, "end_turn", None),
        ("word " * 50, {"max_tokens": 3}, "max_tokens", None),
        ("one END two", {"stop_sequences": ["zz", "END"]}, "stop_sequence", "END"),
        (CALL_TEXT, {"tools": [CALCULATE]}, "tool_use", None),
    ],
)
async def test_the_stop_reason_is_told(serve, stream, said, options, reason, sequence):
    server, _ = serve([said])
    async with AsyncAnthropic(base_url=root_of(server.endpoint), api_key="none", max_retries=0) as client:
        answer = await ask(client, stream, **{**ASKED, **options})
    assert (answer.stop_reason, answer.stop_sequence) == (reason, sequence)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "wizard", "content": "hi"}]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "document"}]}]}, r"messages\[0\].content\[0\]"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, "tool_use_id"),
        ({"messages": [*QUESTION, ASKING]}, "the last message has to be text"),
        ({"messages": [{"role": "assistant", "content": [{"type": "tool_use"}]}, *QUESTION]}, "tool_use needs"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "web_search_20250305"),
        ({"tools": [{"name": "x"}]}, "input_schema"),
        ({"tools": [CALCULATE], "tool_choice": {"type": "tool", "name": "x"}}, "tool_choice"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"stop_sequences": [""]}, "stop_sequences"),
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


def test_a_stream_that_fails_on_its_way_ends_in_an_error_event(serve, monkeypatch):
    server, sampler = serve(["The answer is 42."])
    said = sampler.complete

    async def breaks_off(request):
        async for delta in said(request):
            yield delta
            raise OSError("the sampler broke")

    monkeypatch.setattr(sampler, "complete", breaks_off)
    with pytest.raises(anthropic.APIStatusError, match="the server failed to answer") as caught:
        list(client_of(server).messages.create(**ASKED, stream=True))
    assert caught.value.body["error"]["type"] == "api_error"


def test_models_are_listed_in_anthropics_shape(ok):
    server, _ = ok
    client = client_of(server)
    listed = list(client.models.list())
    assert [(model.type, model.id, model.display_name) for model in listed] == [
        ("model", name, name) for name in ("tiny", "base", "default")
    ]
    assert client.models.retrieve("tiny") == listed[0]
    with pytest.raises(anthropic.NotFoundError):
        client.models.retrieve("none")
