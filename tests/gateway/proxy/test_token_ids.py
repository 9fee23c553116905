"""Token ids in every form in which servers tell them, and what is recorded where they do not."""

from __future__ import annotations

import pytest
from openai import AsyncOpenAI

from mini_agentic_rl.adapter import TrainedCalls, spans_to_records
from mini_agentic_rl.semconv import CompletionSpanAttributes as Key

from .fake_upstream import chunk, completion

QUESTION = [{"role": "user", "content": "12+30?"}]
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


async def _call(proxy, rollout, stream):
    llm = proxy.as_resource(rollout.rollout_id, rollout.attempt.attempt_id)
    async with AsyncOpenAI(base_url=llm.endpoint, api_key="none", max_retries=0) as client:
        answer = await client.chat.completions.create(model="policy", messages=QUESTION, stream=stream)
        if stream:
            async for _ in answer:
                pass


@pytest.mark.parametrize(
    ("form", "said", "asked"),
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
async def test_the_tokens_are_recorded_however_the_server_tells_them(
    upstream, proxying, store, rollout, form, said, asked
):
    server = upstream(lambda body: said)
    proxy = await proxying({"base_url": server.url, "token_ids": form})
    await _call(proxy, rollout, stream=isinstance(said, list))
    (record,) = spans_to_records(await store.query_spans(rollout.rollout_id))
    assert (record.prompt_ids.tolist(), record.output_ids.tolist()) == ([7, 8], [4, 2])
    assert record.logprobs.tolist() == [-0.5, -1.0]
    if asked is not None:
        assert {key for key, value in server.bodies[0].items() if value is True} - {"stream"} == asked


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (completion("42"), "0 token ids and 0 log-probabilities"),
        (completion("42", token_ids=[4, 2, 1], **LOGPROBS), "3 token ids and 2 log-probabilities"),
        (completion("42", **LOGPROBS), "0 token ids and 2 log-probabilities"),
    ],
)
async def test_a_call_whose_tokens_are_not_all_told_is_recorded_and_says_so(
    upstream, proxying, store, rollout, said, reason
):
    proxy = await proxying({"base_url": upstream(lambda body: said).url, "token_ids": "vllm"})
    await _call(proxy, rollout, stream=False)
    spans = await store.query_spans(rollout.rollout_id)
    assert reason in spans[0].attributes[Key.UNTRAINABLE]
    assert '"42"' in spans[0].attributes[Key.OUTPUT_MESSAGES]
    assert spans_to_records(spans) == []
    assert "without the token ids or log-probabilities" in str(TrainedCalls().select(list(spans)).why_empty)
