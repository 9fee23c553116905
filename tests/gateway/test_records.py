"""Calls under a rollout's URL: recorded as spans before their answers are complete, and held to its limits."""

from __future__ import annotations

import asyncio
import json
import time

import httpx
import openai
import pytest

from mini_agentic_rl.adapter import spans_to_records
from mini_agentic_rl.gateway.settings import GatewayLimits
from mini_agentic_rl.semconv import AGL_EXCEPTION, FAILURE_REASON
from mini_agentic_rl.semconv import CompletionSpanAttributes as Attr
from mini_agentic_rl.store import InMemoryLightningStore

from .samples import CALCULATOR, CALL_TEXT, QUESTION, ask_and_leave, openai_client, rollout_url, until


async def _ask(url, **options):
    async with openai_client(url) as client:
        return await client.chat.completions.create(model="tiny", messages=QUESTION, **options)


async def _spans(store, rollout_id):
    return list(await store.query_spans(rollout_id, name=Attr.SPAN_NAME))


def _until_counted(server, outcome, count):
    line = f'requests_total{{dialect="chat/completions",outcome="{outcome}"}} {count}.0'
    until(lambda: line in httpx.get(f"{server.root}/metrics").text)


async def test_a_span_holds_exactly_what_was_sampled(serve, store, tokenizer, rollout):
    server, sampler = serve([CALL_TEXT], store=store)
    url = server.as_resource().get_base_url(rollout.rollout_id, rollout.attempt.attempt_id)
    before = time.time()
    trace, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    answer = await _ask(
        url,
        tools=[CALCULATOR],
        temperature=0.5,
        extra_body={"return_token_ids": True},
        extra_headers={"traceparent": f"00-{trace}-{parent}-01"},
    )
    await _ask(server.endpoint)
    (span,) = await _spans(store, rollout.rollout_id)  # the plain call is not recorded
    ids = [*tokenizer.encode(CALL_TEXT), tokenizer.eos_token_id]
    assert span.attributes[Attr.PROMPT_TOKEN_IDS] == list(sampler.requests[0].prompt_ids)
    assert span.attributes[Attr.RESPONSE_TOKEN_IDS] == ids == answer.choices[0].model_extra["token_ids"]
    assert span.attributes[Attr.RESPONSE_LOGPROBS] == [-0.5 * (position + 1) for position in range(len(ids))]
    assert span.attributes[Attr.POLICY_VERSION] == 3
    assert span.attributes[Attr.REQUEST_TEMPERATURE] == 0.5
    assert span.attributes[Attr.RESPONSE_ID] == answer.id
    assert span.attributes[Attr.FINISH_REASONS] == ["stop"]
    assert json.loads(span.attributes[Attr.INPUT_MESSAGES]) == QUESTION
    sent = json.loads(span.attributes[Attr.OUTPUT_MESSAGES])
    assert sent["tool_calls"][0]["id"] == answer.choices[0].message.tool_calls[0].id
    assert json.loads(span.attributes[Attr.TOOL_DEFINITIONS])[0]["function"]["name"] == "calculate"
    assert (span.attempt_id, span.sequence_id) == (rollout.attempt.attempt_id, 1)
    assert (span.trace_id, span.parent_id) == (trace, parent)
    assert before <= span.start_time <= span.end_time <= time.time()


async def test_each_choice_is_a_span_of_one_response(serve, store):
    server, _ = serve(lambda request: f"seed {request.sampling.seed}", store=store)
    rollout_id, url = await rollout_url(server, store)
    answer = await _ask(url, n=3, seed=1)
    spans = await _spans(store, rollout_id)
    assert {span.attributes[Attr.RESPONSE_ID] for span in spans} == {answer.id}
    assert sorted(span.attributes[Attr.CHOICE_INDEX] for span in spans) == [0, 1, 2]
    assert sorted(span.sequence_id for span in spans) == [1, 2, 3]
    for span in spans:
        choice = answer.choices[span.attributes[Attr.CHOICE_INDEX]]
        assert json.loads(span.attributes[Attr.OUTPUT_MESSAGES])["content"] == choice.message.content


async def test_a_stream_is_recorded_before_its_finish_reason_arrives(serve, store, tokenizer):
    server, _ = serve(["The answer is 42."], store=store)
    rollout_id, url = await rollout_url(server, store)
    async with openai_client(url) as client:
        async for chunk in await client.chat.completions.create(model="tiny", messages=QUESTION, stream=True):
            if chunk.choices[0].finish_reason:
                (span,) = await _spans(store, rollout_id)
    assert span.attributes[Attr.RESPONSE_TOKEN_IDS] == [*tokenizer.encode("The answer is 42."), tokenizer.eos_token_id]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_cancels_its_call_whose_sampled_tokens_are_recorded(serve, store, stream):
    server, sampler = serve(["word " * 400], store=store, delay=0.005)
    rollout_id, url = await rollout_url(server, store)
    body = {"model": "tiny", "messages": QUESTION, "stream": stream}
    arrived = await asyncio.to_thread(ask_and_leave, url, body, begun=lambda: sampler.active, seconds=0.1)
    assert bool(arrived) == stream
    _until_counted(server, "cancelled", 1)
    assert (sampler.active, sampler.closed_early, server.service.counters.cancelled) == (0, 1, 1)
    (span,) = await _spans(store, rollout_id)
    assert span.attributes[Attr.FINISH_REASONS] == ["cancelled"]
    count = len(span.attributes[Attr.RESPONSE_TOKEN_IDS])
    assert 0 < count < 400
    assert len(span.attributes[Attr.RESPONSE_LOGPROBS]) == count


async def test_an_attempt_that_is_unknown_and_a_server_without_a_store_are_refused_before_sampling(serve, store):
    server, sampler = serve(["ok"], store=store)
    rollout = await store.start_rollout({"question": "?"})
    for rollout_id, attempt_id in (("nobody", "never"), (rollout.rollout_id, "never")):
        with pytest.raises(openai.NotFoundError, match="cannot be recorded"):
            await _ask(server.as_resource().get_base_url(rollout_id, attempt_id))
    for seed in ("x", True):
        rollout = await store.start_rollout({"question": "?"}, metadata={"sampling_seed": seed})
        with pytest.raises(openai.BadRequestError, match="sampling_seed"):
            await _ask(server.as_resource().get_base_url(rollout.rollout_id, rollout.attempt.attempt_id))
    assert not sampler.requests
    without, sampler = serve(["ok"])
    with pytest.raises(openai.NotFoundError, match="start it with a store"):
        await _ask(without.as_resource().get_base_url("rollout", "attempt"))
    assert not sampler.requests


class OneWriteStore(InMemoryLightningStore):
    """Gives out no sequence ids apart from spans: an answer is recorded in one write."""

    async def get_many_span_sequence_ids(self, rollout_attempt_ids):
        raise AssertionError("a second write")


async def test_an_answer_is_one_write_and_its_span_gets_the_next_sequence_id(serve):
    store = OneWriteStore()
    server, _ = serve(["ok"], store=store)
    rollout_id, url = await rollout_url(server, store)
    for _ in range(2):
        await _ask(url)
    assert [span.sequence_id for span in await _spans(store, rollout_id)] == [1, 2]


class BrokenStore(InMemoryLightningStore):
    """Knows its rollouts, but takes no spans."""

    async def add_many_spans(self, spans):
        raise OSError("disk full")


async def test_a_store_that_fails_fails_the_call_and_is_logged(serve, caplog):
    store = BrokenStore()
    server, _ = serve(["word " * 5], store=store)
    _, url = await rollout_url(server, store)
    with pytest.raises(openai.InternalServerError, match="nothing could be recorded") as failure:
        await _ask(url)
    assert failure.value.status_code == 503
    body = {"model": "tiny", "messages": QUESTION, "stream": True}
    streamed = httpx.post(f"{url}/chat/completions", json=body)
    assert streamed.status_code == 200
    assert "recording_failed" in streamed.text
    assert "disk full" not in streamed.text + str(failure.value)
    _until_counted(server, "failed", 2)
    assert "disk full" in caplog.text


async def _refusals(store, rollout_id):
    spans = await store.query_spans(rollout_id, name=AGL_EXCEPTION)
    return [(span.attempt_id, span.attributes[FAILURE_REASON], span.status.status_code) for span in spans]


async def test_a_rollout_makes_as_many_calls_as_it_may_and_is_then_stopped_for_good(serve, store, rollout):
    server, sampler = serve(["ok"], store=store, limits=GatewayLimits(max_rollout_calls=2, max_rollout_tokens=200))
    attempt_id = rollout.attempt.attempt_id
    url = server.as_resource().get_base_url(rollout.rollout_id, attempt_id)
    sampler.failure = RuntimeError("out of order")
    for _ in range(3):  # a call that fails costs nothing
        body = {"model": "tiny", "messages": QUESTION}
        assert httpx.post(f"{url}/chat/completions", json=body).status_code == 500
    sampler.failure = None
    await _ask(url)
    await _ask(url)
    for _ in range(2):
        with pytest.raises(openai.PermissionDeniedError, match="made all its LLM calls") as refusal:
            await _ask(url)
        assert refusal.value.code == "rollout_budget_exceeded"
    assert len(sampler.requests) == 2
    reason = "the rollout has made all its LLM calls (max_rollout_calls=2)"
    assert await _refusals(store, rollout.rollout_id) == [(attempt_id, reason, "ERROR")]
    other = await store.start_rollout({"question": "1+1?"})
    await _ask(server.as_resource().get_base_url(other.rollout_id, other.attempt.attempt_id))
    again = await store.start_attempt(rollout.rollout_id)
    await _ask(server.as_resource().get_base_url(rollout.rollout_id, again.attempt.attempt_id))
    for _ in range(3):
        await _ask(server.endpoint)


async def test_an_answer_is_cut_short_where_the_tokens_end_and_the_next_call_is_refused(serve, store, rollout):
    server, _ = serve(["word " * 50], store=store)
    alone = (await _ask(server.endpoint)).usage
    budget = 2 * alone.prompt_tokens + alone.completion_tokens + 5
    server, _ = serve(["word " * 50], store=store, limits=GatewayLimits(max_rollout_tokens=budget))
    url = server.as_resource().get_base_url(rollout.rollout_id, rollout.attempt.attempt_id)
    whole, cut = await _ask(url), await _ask(url)
    assert (whole.choices[0].finish_reason, whole.usage) == ("stop", alone)
    assert (cut.choices[0].finish_reason, cut.usage.completion_tokens) == ("length", 5)
    with pytest.raises(openai.PermissionDeniedError, match=f"used up its tokens .max_rollout_tokens={budget}"):
        await _ask(url)
    assert len(await _refusals(store, rollout.rollout_id)) == 1


async def test_several_answers_to_one_call_share_what_is_left(serve, store):
    server, sampler = serve(["word " * 50], store=store, limits=GatewayLimits(max_rollout_tokens=60))
    _, url = await rollout_url(server, store)
    answer = await _ask(url, n=3)
    assert answer.usage.total_tokens <= 60
    assert {request.sampling.max_tokens for request in sampler.requests} == {answer.usage.completion_tokens // 3}


async def test_an_attempt_whose_refusal_cannot_be_recorded_is_stopped_all_the_same(serve, caplog):
    store = BrokenStore()
    rollout = await store.start_rollout({"question": "?"})
    server, _ = serve(["word " * 50], store=store, limits=GatewayLimits(max_rollout_tokens=3))
    with pytest.raises(openai.PermissionDeniedError):
        await _ask(server.as_resource().get_base_url(rollout.rollout_id, rollout.attempt.attempt_id))
    assert f"could not mark attempt {rollout.attempt.attempt_id} of rollout {rollout.rollout_id}" in caplog.text


async def test_each_token_is_recorded_with_the_policy_version_that_sampled_it(serve, store):
    server, sampler = serve(["word " * 3], store=store)
    sampler.learns_after = 2
    rollout_id, url = await rollout_url(server, store)
    await _ask(url)
    (record,) = spans_to_records(await store.query_spans(rollout_id))
    assert record.version == 3
    assert record.versions is not None
    assert record.versions.tolist() == [3, 3] + [4] * (record.output_ids.size - 2)
