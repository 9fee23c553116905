"""The proxy over a real upstream: the gateway's own server plays the server of others."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator

import httpx
import openai
import pytest
from openai import AsyncOpenAI

from mini_agentic_rl.adapter import spans_to_records
from mini_agentic_rl.errors import UserError
from mini_agentic_rl.gateway.proxy import LLMProxy
from mini_agentic_rl.semconv import CompletionSpanAttributes as Key

QUESTION = [{"role": "user", "content": "12+30?"}]


@pytest.fixture
async def proxy(serve, store) -> AsyncIterator[LLMProxy]:
    upstream, _ = serve(["It makes 42, as far as I can see."])
    made = LLMProxy(
        model_list=[
            {"model_name": "policy", "base_url": upstream.endpoint, "model": upstream.model_name, "token_ids": True},
            {
                "model_name": "critic",
                "litellm_params": {"model": f"openai/{upstream.model_name}", "api_base": upstream.endpoint},
            },
        ],
        store=store,
    )
    await made.start()
    yield made
    await made.stop()


async def _ask(llm, **options):
    async with AsyncOpenAI(base_url=llm.endpoint, api_key="none", max_retries=0) as client:
        return await client.chat.completions.create(model=llm.model, messages=QUESTION, **options)


async def test_an_answer_passes_unchanged_and_its_tokens_are_recorded(proxy, store, rollout):
    llm = proxy.as_resource(rollout.rollout_id, rollout.attempt.attempt_id, "policy")
    answer = await _ask(llm)
    (span,) = await store.query_spans(rollout.rollout_id)
    (record,) = spans_to_records([span])
    assert answer.choices[0].message.content
    assert list(record.output_ids) == answer.choices[0].token_ids
    assert list(record.prompt_ids) == answer.prompt_token_ids
    assert record.model == "policy"
    assert answer.id == record.response_id


async def test_a_stream_passes_chunk_by_chunk_and_leaves_the_same_record(proxy, store, rollout):
    llm = proxy.as_resource(rollout.rollout_id, rollout.attempt.attempt_id, "policy")
    whole = await _ask(llm)
    text, chunks = "", 0
    async with AsyncOpenAI(base_url=llm.endpoint, api_key="none") as client:
        stream = await client.chat.completions.create(model=llm.model, messages=QUESTION, stream=True)
        async for chunk in stream:
            chunks += 1
            text += "".join(choice.delta.content or "" for choice in chunk.choices)
    first, second = await store.query_spans(rollout.rollout_id)
    assert chunks > 2
    assert text == whole.choices[0].message.content
    for key in (Key.PROMPT_TOKEN_IDS, Key.RESPONSE_TOKEN_IDS, Key.RESPONSE_LOGPROBS, Key.OUTPUT_MESSAGES):
        assert first.attributes[key] == second.attributes[key]


@pytest.mark.parametrize(("asked", "recorded"), [({}, 1.0), ({"temperature": 0}, 0.0), ({"temperature": 0.5}, 0.5)])
async def test_the_temperature_is_recorded_as_it_was_asked_for(proxy, store, rollout, asked, recorded):
    await _ask(proxy.as_resource(rollout.rollout_id, rollout.attempt.attempt_id, "policy"), **asked)
    (span,) = await store.query_spans(rollout.rollout_id)
    assert span.attributes[Key.REQUEST_TEMPERATURE] == recorded


async def test_an_upstream_that_is_gone_is_one_clear_error(store):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
    proxy = LLMProxy(model_list=[{"model_name": "policy", "base_url": url}], store=store, num_retries=0)
    await proxy.start()
    try:
        with pytest.raises(openai.InternalServerError, match="does not answer for model 'policy'"):
            await _ask(proxy.as_resource())
    finally:
        await proxy.stop()


async def test_models_can_be_changed_while_it_runs(proxy):
    proxy.update_model_list([{"model_name": "other", "base_url": "http://127.0.0.1:9/v1"}])
    async with httpx.AsyncClient() as client:
        answer = await client.get(f"{proxy.endpoint}/models")
    assert [row["id"] for row in answer.json()["data"]] == ["other"]


@pytest.mark.parametrize(
    "model_list",
    [[{"model_name": "policy"}], [{"base_url": "http://x/v1"}], [{"model_name": "a", "base_url": "http://x"}] * 2],
)
def test_a_model_list_that_cannot_work_is_refused(model_list):
    with pytest.raises(UserError, match="model_list"):
        LLMProxy(model_list=model_list)
