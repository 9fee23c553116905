"""The proxy in every dialect, and token ids in every form in which servers report them."""

from __future__ import annotations

import httpx
import openai
import pytest
from anthropic import AsyncAnthropic

from mini_agentic_rl.adapter import TrainedCalls, spans_to_records
from mini_agentic_rl.errors import UserError
from mini_agentic_rl.gateway.proxy import LLMProxy
from mini_agentic_rl.semconv import CompletionSpanAttributes as Key

from ..samples import CALL_TEXT, QUESTION, assert_one_branch, openai_client, records_of
from .fake_upstream import chunk, completion

SCHEMA = {"type": "object", "properties": {"expression": {"type": "string"}}}


@pytest.fixture
async def agent_url(serve, proxying, rollout):
    """The base URL of a rollout's agent, behind a proxy to a server that makes a call and then answers."""
    upstream, _ = serve([f"Let me see.\n{CALL_TEXT}", "The answer is 42."])
    proxy = await proxying({"base_url": upstream.endpoint, "model": upstream.model_name, "token_ids": True})
    return proxy.as_resource(rollout.rollout_id, rollout.attempt.attempt_id, "policy").endpoint


async def test_whole_and_streamed_answers_pass_unchanged_and_leave_the_same_record(serve, proxying, store, rollout):
    upstream, _ = serve(["It makes 42, as far as I can see."])
    address = {"base_url": upstream.endpoint, "model": upstream.model_name, "token_ids": True}
    critic = {"model": f"openai/{upstream.model_name}", "api_base": upstream.endpoint}
    proxy = await proxying(address, {"model_name": "critic", "litellm_params": critic})
    llm = proxy.as_resource(rollout.rollout_id, rollout.attempt.attempt_id, "policy")
    async with openai_client(llm.endpoint) as client:
        whole = await client.chat.completions.create(model="policy", messages=QUESTION)
        stream = await client.chat.completions.create(model="policy", messages=QUESTION, stream=True)
        chunks = [each async for each in stream]
        for temperature in (0, 0.5):
            await client.chat.completions.create(model="policy", messages=QUESTION, temperature=temperature)
        assert (await client.chat.completions.create(model="critic", messages=QUESTION)).choices
    text = "".join(choice.delta.content or "" for each in chunks for choice in each.choices)
    assert len(chunks) > 2
    assert text == whole.choices[0].message.content == "It makes 42, as far as I can see."
    first, second, *others, unknown = await store.query_spans(rollout.rollout_id)
    for key in (Key.PROMPT_TOKEN_IDS, Key.RESPONSE_TOKEN_IDS, Key.RESPONSE_LOGPROBS, Key.OUTPUT_MESSAGES):
        assert first.attributes[key] == second.attributes[key]
    assert [span.attributes[Key.REQUEST_TEMPERATURE] for span in (first, *others)] == [1.0, 0.0, 0.5]
    assert spans_to_records([unknown]) == []
    (record,) = spans_to_records([first])
    assert list(record.output_ids) == whole.choices[0].token_ids
    assert list(record.prompt_ids) == whole.prompt_token_ids
    assert (record.model, record.response_id) == ("policy", whole.id)


async def test_a_streamed_tool_loop_in_messages_is_recorded_as_one_branch(agent_url, store, rollout):
    tool = {"name": "calculate", "input_schema": SCHEMA}
    messages: list = [{"role": "user", "content": "12+30?"}]
    async with AsyncAnthropic(base_url=agent_url.removesuffix("/v1"), api_key="none", max_retries=0) as client:
        for _ in range(2):
            asked = {"model": "policy", "max_tokens": 99, "tools": [tool], "messages": messages}
            async with client.messages.stream(**asked) as events:
                answer = await events.get_final_message()
            calls = [block.id for block in answer.content if block.type == "tool_use"]
            done = [{"type": "tool_result", "tool_use_id": call_id, "content": "42"} for call_id in calls]
            messages += [{"role": "assistant", "content": answer.content}, {"role": "user", "content": done}]
    assert [block.text for block in answer.content] == ["The answer is 42."]
    assert answer.usage.output_tokens > 0
    assert_one_branch(await records_of(store, rollout.rollout_id), calls=2)


async def test_refusals_and_fields_without_effect_are_reported_in_the_agents_dialect(agent_url):
    long = "x" * 9000
    async with openai_client(agent_url) as client:
        with pytest.raises(openai.BadRequestError, match="maximum context length") as refused:
            await client.responses.create(model="policy", input=long, stream=True)
    assert (refused.value.code, refused.value.param) == ("context_length_exceeded", "input")
    asked = {"model": "policy", "max_tokens": 9, "messages": QUESTION}
    tools = [{"type": "local_shell"}, {"type": "function", "name": "calculate", "parameters": SCHEMA}]
    async with httpx.AsyncClient() as client:
        body = {"model": "policy", "input": "hi", "tools": tools, "frobnicate": 1}
        answer = await client.post(f"{agent_url}/responses", json=body)
        assert answer.status_code == 200, answer.text
        assert answer.headers["x-ignored-parameters"] == "frobnicate, tools[0] (local_shell)"
        answer = await client.post(f"{agent_url}/messages", json=asked | {"prompt_logprobs": 1})
        assert answer.status_code == 400
        assert "prompt_logprobs" in answer.text


async def test_models_can_be_changed_while_it_runs(proxying):
    proxy = await proxying()
    proxy.update_model_list([{"model_name": "other", "base_url": "http://127.0.0.1:9/v1"}])
    async with httpx.AsyncClient() as client:
        answer = await client.get(f"{proxy.endpoint}/models")
    assert [row["id"] for row in answer.json()["data"]] == ["other"]


@pytest.mark.parametrize(
    ("model_list", "named"),
    [
        ([{"model_name": "policy"}], "model_list"),
        ([{"base_url": "http://x/v1"}], "model_list"),
        ([{"model_name": "a", "base_url": "http://x"}] * 2, "model_list"),
        ([{"model_name": "a", "base_url": "http://x", "token_ids": "llama.cpp"}], "model_list: token_ids="),
        ([{"model_name": "a", "base_url": "http://x", "timeout": 0}], "model_list: timeout="),
    ],
)
def test_a_model_list_that_cannot_work_is_refused(model_list, named):
    with pytest.raises(UserError, match=named):
        LLMProxy(model_list=model_list)


LOGPROBS = {"logprobs": {"content": [{"token": "4", "logprob": -0.5}, {"token": "2", "logprob": -1.0}]}}
FIRST = {"logprobs": {"content": [{"token": "4", "logprob": -0.5}]}}
SECOND = {"logprobs": {"content": [{"token": "2", "logprob": -1.0}]}}
META = {"meta_info": {"output_token_logprobs": [[-0.5, 4, "4"], [-1.0, 2, "2"]]}}

VLLM = completion("42", token_ids=[4, 2], **LOGPROBS) | {"prompt_token_ids": [7, 8]}
VLLM_STREAM = [
    chunk("4", choice={"token_ids": [4], **FIRST}, prompt_token_ids=[7, 8]),
    chunk("2", finish="stop", choice={"token_ids": [2], **SECOND}),
]
SGLANG = completion("42", **LOGPROBS) | {"sglext": {"input_ids": [7, 8], "output_ids": [[4, 2]]}}
SGLANG_STREAM = [
    chunk("4", choice=FIRST),
    chunk("2", finish="stop", choice=SECOND),
    chunk(sglext={"input_ids": [7, 8], "output_ids": [[4, 2]]}) | {"choices": []},
]
SGLANG_PER_CHOICE = completion("42", prompt_token_ids=[7, 8], token_ids=[4, 2], **LOGPROBS)
SGLANG_META = completion("42", prompt_token_ids=[7, 8], **META, **LOGPROBS)


async def _call(proxy, rollout, stream=False):
    llm = proxy.as_resource(rollout.rollout_id, rollout.attempt.attempt_id)
    async with openai_client(llm.endpoint) as client:
        answer = await client.chat.completions.create(model="policy", messages=QUESTION, stream=stream)
        if stream:
            async for _ in answer:
                pass


@pytest.mark.parametrize(
    ("form", "answer", "requested"),
    [
        ("vllm", VLLM, {"return_token_ids", "logprobs"}),
        (True, VLLM_STREAM, {"return_token_ids", "logprobs"}),
        (
            "sglang",
            SGLANG,
            {"return_input_ids", "return_output_ids", "return_prompt_token_ids", "return_meta_info", "logprobs"},
        ),
        ("sglang", SGLANG_STREAM, {"return_input_ids", "return_output_ids", "logprobs"}),
        ("sglang", SGLANG_PER_CHOICE, None),
        ("sglang", SGLANG_META, None),
    ],
)
async def test_the_tokens_are_recorded_however_the_server_reports_them(
    upstream, proxying, store, rollout, form, answer, requested
):
    server = upstream(lambda body: answer)
    proxy = await proxying({"base_url": server.url, "token_ids": form})
    await _call(proxy, rollout, stream=isinstance(answer, list))
    (record,) = spans_to_records(await store.query_spans(rollout.rollout_id))
    assert (record.prompt_ids.tolist(), record.output_ids.tolist()) == ([7, 8], [4, 2])
    assert record.logprobs.tolist() == [-0.5, -1.0]
    if requested is not None:
        assert {key for key, value in server.bodies[0].items() if value is True} - {"stream"} == requested


async def test_a_call_without_all_its_tokens_is_recorded_and_says_so(upstream, proxying, store, rollout):
    answers = [completion("42"), completion("42", token_ids=[4, 2, 1], **LOGPROBS), completion("42", **LOGPROBS)]
    left = iter(answers)
    proxy = await proxying({"base_url": upstream(lambda body: next(left)).url, "token_ids": "vllm"})
    for _ in answers:
        await _call(proxy, rollout)
    spans = list(await store.query_spans(rollout.rollout_id))
    for span, (ids, logprobs) in zip(spans, ((0, 0), (3, 2), (0, 2)), strict=True):
        assert f"{ids} token ids and {logprobs} log-probabilities" in span.attributes[Key.UNTRAINABLE]
        assert '"42"' in span.attributes[Key.OUTPUT_MESSAGES]
    assert spans_to_records(spans) == []
    assert "without the token ids or log-probabilities" in str(TrainedCalls().select(spans).why_empty)
