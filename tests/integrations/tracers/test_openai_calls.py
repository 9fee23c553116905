"""Calls of models that no gateway records: what `AgentOpsTracer` makes of them."""

from __future__ import annotations

import asyncio
import json

import pytest
from openai import AsyncOpenAI, BadRequestError, OpenAI
from pydantic import BaseModel

from mini_agentic_rl import AgentOpsTracer, InMemoryLightningStore, OtelTracer, TraceToMessages
from rewards.servers import serving

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2 + 3?"}]
TOOL = {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": {"type": "object"}}}
CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 2}'}}


def _answer(path, asked, headers):
    """Call a tool where one is offered, refuse the model `bad`, stream on demand: the server of somebody else."""
    if asked["model"] == "bad":
        return 400, {"error": {"message": "no"}}
    message = {"role": "assistant", "content": '{"number": 5}'}
    if asked.get("tools"):
        message = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    choice = {"index": 0, "finish_reason": "stop", "message": message}
    answer = {"id": "x1", "object": "chat.completion", "created": 1, "model": "m-1", "choices": [choice]}
    if asked.get("stream"):
        chunk = {**answer, "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": "5"}}]}
        return 200, f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n"
    return 200, answer


@pytest.fixture(scope="module")
def url():
    with serving(_answer) as root:
        yield f"{root}/v1"


async def _spans(tracer, act):
    """Return the spans of an attempt in which `act` was awaited."""
    store = InMemoryLightningStore()
    started = await store.start_rollout("task")
    ids = {"rollout_id": started.rollout_id, "attempt_id": started.attempt.attempt_id}
    async with tracer.trace_context("run", store=store, **ids):
        await act()
    return await store.query_spans(**ids)


async def test_a_call_elsewhere_is_a_span_with_its_messages(url):
    client = AsyncOpenAI(base_url=url, api_key="k")

    async def act():
        await client.chat.completions.create(model="m", messages=MESSAGES, temperature=0.5)

    call, session = await _spans(AgentOpsTracer(), act)
    assert (call.name, call.status.status_code, call.parent_id) == ("openai.chat.completion", "OK", session.span_id)
    facts = call.attributes
    assert facts["gen_ai.request.model"] == "m"
    assert facts["gen_ai.request.temperature"] == 0.5
    assert facts["gen_ai.request.streaming"] is False
    assert (facts["gen_ai.prompt.1.role"], facts["gen_ai.prompt.1.content"]) == ("user", "2 + 3?")
    assert (facts["gen_ai.response.id"], facts["gen_ai.response.model"]) == ("x1", "m-1")
    assert facts["gen_ai.completion.0.content"] == '{"number": 5}'
    assert (session.name, session.attributes["agentops.span.kind"]) == ("run", "session")
    for span in (call, session):  # what leaves over OTLP says whose it is
        assert span.resource.attributes["agentlightning.rollout_id"] == span.rollout_id
        assert span.resource.attributes["agentlightning.attempt_id"] == span.attempt_id
    assert TraceToMessages().adapt([call, session]) == [
        {"messages": [*MESSAGES, {"role": "assistant", "content": '{"number": 5}'}], "tools": None}
    ]


async def test_every_way_of_the_sdk_to_ask_is_recorded_once(url):
    class Number(BaseModel):
        number: int

    client = OpenAI(base_url=url, api_key="k")

    async def act():
        with_headers = client.chat.completions.with_raw_response.create(model="raw", messages=MESSAGES)
        assert with_headers.parse().id == "x1"
        parsed = client.chat.completions.parse(model="parsed", messages=MESSAGES, response_format=Number)
        assert parsed.choices[0].message.parsed == Number(number=5)
        await asyncio.to_thread(client.chat.completions.create, model="thread", messages=MESSAGES)

    spans = await _spans(AgentOpsTracer(), act)
    calls = [span for span in spans if span.name == "openai.chat.completion"]
    assert [call.attributes["gen_ai.request.model"] for call in calls] == ["raw", "parsed", "thread"]
    assert {call.attributes["gen_ai.completion.0.content"] for call in calls} == {'{"number": 5}'}


async def test_tools_calls_and_errors_are_read_back_as_openai_writes_them(url):
    client = OpenAI(base_url=url, api_key="k", max_retries=0)
    told = {"role": "tool", "tool_call_id": "c0", "content": "4"}

    async def act():
        answer = client.chat.completions.create(model="m", messages=[*MESSAGES, told], tools=[TOOL])
        client.chat.completions.create(model="m", messages=[answer.choices[0].message])  # as the SDK gives it
        with pytest.raises(BadRequestError):
            client.chat.completions.create(model="bad", messages=MESSAGES)

    *spans, failed, session = await _spans(AgentOpsTracer(), act)
    first, second = TraceToMessages().adapt([*spans, session])
    called = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    assert first == {"messages": [*MESSAGES, told, called], "tools": [TOOL]}
    assert second["messages"][0] == called
    assert failed.status.status_code == "ERROR"
    assert "BadRequestError" in failed.status.description


async def test_what_others_record_is_left_to_them(url):
    """Streams, calls through a rollout's address, other tracers, and calls outside of every trace make no span."""

    async def act():
        client = OpenAI(base_url=url, api_key="k")
        assert [chunk.id for chunk in client.chat.completions.create(model="m", messages=MESSAGES, stream=True)] == [
            "x1"
        ]
        through_a_gateway = OpenAI(base_url=url.replace("/v1", "/rollout/r/attempt/a/v1"), api_key="k")
        through_a_gateway.chat.completions.create(model="m", messages=MESSAGES)

    assert [span.name for span in await _spans(AgentOpsTracer(), act)] == ["run"]

    async def plainly():
        OpenAI(base_url=url, api_key="k").chat.completions.create(model="m", messages=MESSAGES)

    assert [span.name for span in await _spans(OtelTracer(), plainly)] == ["run"]
    assert [span.name for span in await _spans(AgentOpsTracer(instrument_managed=False), plainly)] == ["run"]
    await plainly()
