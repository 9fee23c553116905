"""Every dialect over an upstream: the gateway's own server plays the server of others."""

from __future__ import annotations

import anthropic
import httpx
import openai
import pytest
from anthropic import AsyncAnthropic

from ..dialects.trees import assert_one_branch, openai_client, records_of
from ..samples import CALL_TEXT

MESSAGES = {"model": "policy", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
SCHEMA = {"type": "object", "properties": {"expression": {"type": "string"}}}


@pytest.fixture
async def agent_url(serve, proxying, rollout):
    """The base URL of a rollout's agent, behind a proxy to a server that makes a call and then answers."""
    upstream, _ = serve([f"Let me see.\n{CALL_TEXT}", "The answer is 42."])
    proxy = await proxying({"base_url": upstream.endpoint, "model": upstream.model_name, "token_ids": True})
    return proxy.as_resource(rollout.rollout_id, rollout.attempt.attempt_id, "policy").endpoint


@pytest.mark.parametrize("stream", [False, True])
async def test_a_tool_loop_in_responses_is_recorded_as_one_branch(agent_url, store, rollout, stream):
    tool = {"type": "function", "name": "calculate", "parameters": SCHEMA}
    said: list = [{"role": "user", "content": "12+30?"}]
    previous = None
    async with openai_client(agent_url) as client:
        for _ in range(2):
            asked = {"model": "policy", "tools": [tool], "input": said, "previous_response_id": previous}
            if stream:
                events = [event async for event in await client.responses.create(**asked, stream=True)]
                answer = events[-1].response
            else:
                answer = await client.responses.create(**asked)
            calls = [item.call_id for item in answer.output if item.type == "function_call"]
            said = [{"type": "function_call_output", "call_id": call_id, "output": "42"} for call_id in calls]
            previous = answer.id
    assert answer.output_text == "The answer is 42."
    assert answer.usage.output_tokens > 0
    assert answer.output[0].content[0].logprobs == []
    assert_one_branch(await records_of(store, rollout.rollout_id), calls=2)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_tool_loop_in_messages_is_recorded_as_one_branch(agent_url, store, rollout, stream):
    tool = {"name": "calculate", "input_schema": SCHEMA}
    said: list = [{"role": "user", "content": "12+30?"}]
    root = agent_url.removesuffix("/v1")
    async with AsyncAnthropic(base_url=root, api_key="none", max_retries=0) as client:
        for _ in range(2):
            asked = {"model": "policy", "max_tokens": 99, "tools": [tool], "messages": said}
            if stream:
                async with client.messages.stream(**asked) as events:
                    answer = await events.get_final_message()
            else:
                answer = await client.messages.create(**asked)
            calls = [block.id for block in answer.content if block.type == "tool_use"]
            done = [{"type": "tool_result", "tool_use_id": call_id, "content": "42"} for call_id in calls]
            said += [{"role": "assistant", "content": answer.content}, {"role": "user", "content": done}]
    assert [block.text for block in answer.content] == ["The answer is 42."]
    assert answer.usage.output_tokens > 0
    assert_one_branch(await records_of(store, rollout.rollout_id), calls=2)


@pytest.mark.parametrize("stream", [False, True])
async def test_an_upstreams_refusal_is_told_in_the_agents_dialect(agent_url, stream):
    long = "x" * 9000
    async with openai_client(agent_url) as client:
        with pytest.raises(openai.BadRequestError, match="maximum context length") as told:
            await client.responses.create(model="policy", input=long, stream=stream)
    assert (told.value.code, told.value.param) == ("context_length_exceeded", "input")
    root = agent_url.removesuffix("/v1")
    async with AsyncAnthropic(base_url=root, api_key="none", max_retries=0) as client:
        asked = {"model": "policy", "max_tokens": 9, "messages": [{"role": "user", "content": long}]}
        with pytest.raises(anthropic.BadRequestError, match="maximum context length") as told_otherwise:
            await client.messages.create(**asked, stream=stream)
    assert told_otherwise.value.body["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("stream", [False, True])
async def test_what_a_translation_leaves_out_is_named_and_fields_of_other_servers_go_on(agent_url, stream):
    tools = [{"type": "local_shell"}, {"type": "function", "name": "calculate", "parameters": SCHEMA}]
    asked = {"model": "policy", "input": "hi", "tools": tools, "frobnicate": 1, "stream": stream}
    async with httpx.AsyncClient() as client:
        answer = await client.post(f"{agent_url}/responses", json=asked)
        assert answer.status_code == 200, answer.text
        assert answer.headers["x-ignored-parameters"] == "frobnicate, tools[0] (local_shell)"
        refused = await client.post(f"{agent_url}/messages", json=MESSAGES | {"prompt_logprobs": 1})
        assert refused.status_code == 400
        assert "prompt_logprobs" in refused.text
