"""Traces that the instrumentations of agent-lightning 0.3 wrote: AgentOps, LiteLLM's callback, Weave."""

from __future__ import annotations

import json
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from mini_agentic_rl.adapter import LlmProxyTraceToTriplet, TracerTraceToTriplet, TraceToMessages
from mini_agentic_rl.types import Span

from .spans import plain, reward

PROMPT = {
    "gen_ai.prompt.0.role": "system",
    "gen_ai.prompt.0.content": "Be brief.",
    "gen_ai.prompt.1.role": "user",
    "gen_ai.prompt.1.content": "2 + 3?",
}
ANSWER = {"gen_ai.completion.0.role": "assistant", "gen_ai.completion.0.content": "5"}
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2 + 3?"}]


def agentops_call(number: int, start: float, end: float, *, parent: Span | None = None, **more: Any) -> Span:
    span = plain(
        number,
        "openai.chat.completion",
        start,
        end,
        **{
            "gen_ai.request.model": "m",
            "gen_ai.response.id": f"chatcmpl-{number}",
            "prompt_token_ids": [1, number],
            "response_token_ids": [9],
            **PROMPT,
            **ANSWER,
            **more,
        },
    )
    span.parent_id = None if parent is None else parent.span_id
    return span


def test_numbered_messages_are_the_raw_content_of_a_triplet() -> None:
    [triplet] = TracerTraceToTriplet()([agentops_call(1, 0.0, 1.0, **{"logprobs.content": '[{"logprob": -0.5}]'})])
    assert triplet.prompt == {"token_ids": [1, 1], "raw_content": MESSAGES, "image_urls": []}
    image = json.dumps([{"type": "image_url", "image_url": {"url": "http://x/1.png"}}])  # content that is JSON text
    beside = {"gen_ai.prompt.1.content": image, "gen_ai.prompt.prompt_filter_results": "[]"}
    assert TracerTraceToTriplet()([agentops_call(1, 0.0, 1.0, **beside)])[0].prompt["image_urls"] == ["http://x/1.png"]
    assert triplet.response["raw_content"] == [{"role": "assistant", "content": "5"}]
    assert triplet.response["logprobs"] == [{"logprob": -0.5}]
    assert triplet.metadata["request"] == {"model": "m"}
    assert triplet.metadata["response"] == {"id": "chatcmpl-1"}


@pytest.mark.parametrize(
    ("name", "attributes"),
    [
        ("solver.agent", {"agentops.span.kind": "agent", "operation.name": "solver"}),
        ("run", {"type": "agent", "agentlightning.operation.input.name": "solver"}),
        ("langchain.Chain.solver", {"lc_name": "solver"}),
        ("agent", {"agent.name": "solver"}),
    ],
)
def test_agent_match_knows_the_agents_of_each_instrumentation(name: str, attributes: dict[str, Any]) -> None:
    session = plain(9, "trace.session", 0.0, 10.0, **{"agentops.span.kind": "session"})
    agent = plain(8, name, 2.0, 5.0, **attributes)
    agent.parent_id = session.span_id
    calls = [agentops_call(1, 1.0, 1.5, parent=session), agentops_call(2, 3.0, 4.0, parent=session)]
    triplets = TracerTraceToTriplet(agent_match="solver")([session, agent, *calls])
    assert [triplet.prompt["token_ids"] for triplet in triplets] == [[1, 2]]
    assert triplets[0].metadata["agent_name"] == "solver"
    assert TracerTraceToTriplet(agent_match="solver", repair_hierarchy=False)([session, agent, *calls]) == []


def test_a_call_right_under_an_agent_that_is_the_root_stays_there() -> None:
    root = plain(9, "planner", 0.0, 10.0, **{"agent.name": "planner"})
    other = plain(8, "solver", 2.0, 5.0, **{"agent.name": "solver"})
    other.parent_id = root.span_id
    [triplet] = TracerTraceToTriplet()([root, other, agentops_call(1, 3.0, 4.0, parent=root)])
    assert triplet.metadata["agent_name"] == "planner"


def test_rewards_of_agentops_belong_to_the_call_before_them() -> None:
    scored = plain(3, "score.task", 1.5, 2.5, **{"agentops.task.output": '{"type": "reward", "value": 0.5}'})
    judge = agentops_call(2, 1.8, 2.2, parent=scored)
    triplets = TracerTraceToTriplet()([agentops_call(1, 0.0, 1.0), judge, scored])
    assert [(triplet.prompt["token_ids"], triplet.reward) for triplet in triplets] == [([1, 1], 0.5)]


RAW = {
    "llm.hosted_vllm.id": "chatcmpl-1",
    "llm.hosted_vllm.prompt_token_ids": "[1, 2, 3]",
    "llm.hosted_vllm.response_token_ids": "[[4, 5]]",
}
RAW_CHOICES = {
    "llm.hosted_vllm.id": "chatcmpl-1",
    "llm.hosted_vllm.prompt_token_ids": "[1, 2, 3]",
    "llm.hosted_vllm.choices": "[{'finish_reason': 'stop', 'token_ids': [4, 5], 'stop_reason': None}]",
}


@pytest.mark.parametrize("attributes", [RAW, RAW_CHOICES])
def test_the_proxys_raw_requests_give_triplets_in_the_order_of_the_store(attributes: dict[str, Any]) -> None:
    asked = plain(1, "litellm_request", 0.0, 2.0, **{"gen_ai.response.id": "chatcmpl-1"})
    raw = plain(2, "raw_gen_ai_request", 0.5, 1.5, **attributes)
    later = plain(4, "litellm_request", 0.0, 0.5, prompt_token_ids="[6]", response_token_ids="[7]")
    spans = [later, reward(3, 0.25), raw, asked, reward(5, 1.0)]
    triplets = LlmProxyTraceToTriplet()(spans)
    assert [triplet.prompt["token_ids"] for triplet in triplets] == [[1, 2, 3], [6]]
    assert [triplet.response["token_ids"] for triplet in triplets] == [[4, 5], [7]]
    assert [triplet.reward for triplet in triplets] == [0.25, 1.0]
    assert triplets[0].metadata["response_id"] == "chatcmpl-1"
    broken = {"llm.hosted_vllm.prompt_token_ids": "[1, 2", "llm.hosted_vllm.response_token_ids": "[['a']]"}
    assert LlmProxyTraceToTriplet()([plain(1, "raw_gen_ai_request", 0.0, 1.0, **broken)]) == []


def test_a_call_of_weave_has_its_tokens_messages_and_id() -> None:
    span = plain(
        1,
        "openai.chat.completion",
        0.0,
        1.0,
        **{
            "agentlightning.operation.input.model": "m",
            "agentlightning.operation.input.messages.0.role": "user",
            "agentlightning.operation.input.messages.0.content": "hi",
            "agentlightning.operation.output.id": "chatcmpl-7",
            "agentlightning.operation.output.prompt_token_ids": [1, 2],
            "agentlightning.operation.output.choices.0.token_ids": [3],
            "agentlightning.operation.output.choices.0.message.content": "hello",
        },
    )
    [triplet] = TracerTraceToTriplet()([span])
    assert (triplet.prompt["token_ids"], triplet.response["token_ids"]) == ([1, 2], [3])
    assert triplet.prompt["raw_content"] == [{"role": "user", "content": "hi"}]
    assert triplet.metadata["response_id"] == "chatcmpl-7"
    assert triplet.metadata["request"] == {"model": "m"}
    assert triplet.metadata["response"] == {"id": "chatcmpl-7"}


def test_numbered_messages_and_tools_are_rows_for_fine_tuning() -> None:
    called = {
        "gen_ai.completion.0.role": "assistant",
        "gen_ai.completion.0.tool_calls.0.id": "call-1",
        "gen_ai.completion.0.tool_calls.0.name": "add",
        "gen_ai.completion.0.tool_calls.0.arguments": '{"a": 2}',
        "gen_ai.request.functions.0.name": "add",
        "gen_ai.request.functions.0.description": "Adds.",
        "gen_ai.request.functions.0.parameters": '{"type": "object"}',
    }
    first = plain(1, "openai.chat.completion", 0.0, 1.0, **PROMPT, **called)
    told = {"gen_ai.prompt.2.role": "tool", "gen_ai.prompt.2.content": "5", "gen_ai.prompt.2.tool_call_id": "call-1"}
    second = plain(2, "openai.chat.completion", 2.0, 3.0, **PROMPT, **told, **ANSWER)
    [row, then] = TraceToMessages()([second, first, plain(3, "other", 0.0, 1.0)])
    call = {"id": "call-1", "type": "function", "function": {"name": "add", "arguments": '{"a": 2}'}}
    assert row["messages"] == [*MESSAGES, {"role": "assistant", "content": None, "tool_calls": [call]}]
    assert row["tools"] == [
        {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": {"type": "object"}}}
    ]
    assert then["messages"][2:] == [
        {"role": "tool", "content": "5", "tool_call_id": "call-1"},
        {"role": "assistant", "content": "5"},
    ]
    assert then["tools"] is None


def test_tools_that_ran_below_a_call_are_its_tool_calls() -> None:
    call = plain(1, "openai.chat.completion", 0.0, 1.0, **PROMPT, **ANSWER)
    tool = plain(2, "tool", 0.2, 0.4, **{"tool.name": "add", "tool.parameters": "{}", "tool.call.id": "c"})
    tool.parent_id = call.span_id
    [row] = TraceToMessages()([call, tool])
    assert row["messages"][-1]["tool_calls"] == [
        {"id": "c", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    ]
    silent = plain(1, "openai.chat.completion", 0.0, 1.0, **PROMPT, **{"gen_ai.completion.0.role": "assistant"})
    tool.parent_id = silent.span_id
    contents = [TraceToMessages()(spans)[0]["messages"][-1]["content"] for spans in ([silent, tool], [silent])]
    assert contents == [None, ""]  # an answer of calls alone has no text


def test_spans_of_the_sdk_are_adapted_in_the_order_of_their_ends() -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("test")
    for number in (1, 2):
        facts = {"prompt_token_ids": [number], "response_token_ids": [9], "gen_ai.response.id": f"r{number}"}
        tracer.start_span("openai.chat.completion", attributes=facts).end()
    spans: tuple[ReadableSpan, ...] = exporter.get_finished_spans()
    triplets = TracerTraceToTriplet()(tuple(reversed(spans)))
    assert [triplet.prompt["token_ids"] for triplet in triplets] == [[1], [2]]
