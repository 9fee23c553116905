"""Every call under a rollout's URL becomes a span before its answer is complete."""

from __future__ import annotations

import asyncio
import json
import time

import openai
import pytest
from openai import AsyncOpenAI

from mini_agentic_rl.semconv import CompletionSpanAttributes as Attr
from mini_agentic_rl.store import InMemoryLightningStore

from ..samples import CALCULATOR, CALL_TEXT

QUESTION = [{"role": "user", "content": "12+30?"}]


async def started(server, store):
    """A running rollout and a client for its URL."""
    rollout = await store.start_rollout({"question": "12+30?"})
    resource = server.as_resource({"temperature": 0.5})
    base_url = resource.get_base_url(rollout.rollout_id, rollout.attempt.attempt_id)
    return rollout, AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0)


async def spans_of(store, rollout):
    return list(await store.query_spans(rollout.rollout_id, name=Attr.SPAN_NAME))


async def eventually(condition, seconds=5.0):
    end = time.monotonic() + seconds
    while not await condition():
        assert time.monotonic() < end, "it never came true"
        await asyncio.sleep(0.01)


async def test_a_span_holds_exactly_what_was_sampled(serve, store, tokenizer):
    server, sampler = serve([CALL_TEXT], store=store)
    rollout, client = await started(server, store)
    before = time.time()
    answer = await client.chat.completions.create(
        model="tiny", messages=QUESTION, tools=[CALCULATOR], temperature=0.5, extra_body={"return_token_ids": True}
    )
    (span,) = await spans_of(store, rollout)
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
    assert before <= span.start_time <= span.end_time <= time.time()


async def test_each_choice_is_a_span_of_one_response(serve, store):
    server, _ = serve(lambda request: f"seed {request.sampling.seed}", store=store)
    rollout, client = await started(server, store)
    answer = await client.chat.completions.create(model="tiny", messages=QUESTION, n=3, seed=1)
    spans = await spans_of(store, rollout)
    assert {span.attributes[Attr.RESPONSE_ID] for span in spans} == {answer.id}
    assert sorted(span.attributes[Attr.CHOICE_INDEX] for span in spans) == [0, 1, 2]
    assert sorted(span.sequence_id for span in spans) == [1, 2, 3]
    for span in spans:
        choice = answer.choices[span.attributes[Attr.CHOICE_INDEX]]
        assert json.loads(span.attributes[Attr.OUTPUT_MESSAGES])["content"] == choice.message.content


async def test_a_stream_is_recorded_before_its_finish_reason_arrives(serve, store, tokenizer):
    server, _ = serve(["The answer is 42."], store=store)
    rollout, client = await started(server, store)
    async for chunk in await client.chat.completions.create(model="tiny", messages=QUESTION, stream=True):
        if chunk.choices[0].finish_reason:
            (span,) = await spans_of(store, rollout)
    assert span.attributes[Attr.RESPONSE_TOKEN_IDS] == [
        *tokenizer.encode("The answer is 42."),
        tokenizer.eos_token_id,
    ]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_goes_away_cancels_and_leaves_what_was_sampled(serve, store, stream):
    server, sampler = serve(["word " * 400], store=store, delay=0.005)
    rollout, client = await started(server, store)

    async def ask():
        answer = await client.chat.completions.create(model="tiny", messages=QUESTION, stream=stream)
        async for _ in answer:
            pass

    asking = asyncio.create_task(ask())

    async def sampling():
        return sampler.active == 1

    async def recorded():
        return len(await spans_of(store, rollout)) == 1

    await eventually(sampling)
    await asyncio.sleep(0.1)
    asking.cancel()
    await eventually(recorded)
    assert sampler.active == 0
    assert sampler.closed_early == 1
    (span,) = await spans_of(store, rollout)
    assert span.attributes[Attr.FINISH_REASONS] == ["cancelled"]
    count = len(span.attributes[Attr.RESPONSE_TOKEN_IDS])
    assert 0 < count < 400
    assert len(span.attributes[Attr.RESPONSE_LOGPROBS]) == count
    assert server.service.counters.cancelled == 1


async def test_the_agents_own_trace_context_is_kept(serve, store):
    server, _ = serve(["ok"], store=store)
    rollout, client = await started(server, store)
    trace, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    headers = {"traceparent": f"00-{trace}-{parent}-01"}
    await client.chat.completions.create(model="tiny", messages=QUESTION, extra_headers=headers)
    (span,) = await spans_of(store, rollout)
    assert (span.trace_id, span.parent_id) == (trace, parent)


async def test_plain_calls_are_not_recorded(serve, store):
    server, _ = serve(["ok"], store=store)
    rollout, client = await started(server, store)
    await client.with_options(base_url=server.endpoint).chat.completions.create(model="tiny", messages=QUESTION)
    assert await spans_of(store, rollout) == []


async def test_without_a_store_a_rollouts_url_is_refused(serve):
    server, sampler = serve(["ok"])
    base_url = server.as_resource().get_base_url("rollout", "attempt")
    async with AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0) as client:
        with pytest.raises(openai.NotFoundError, match="start it with a store"):
            await client.chat.completions.create(model="tiny", messages=QUESTION)
    assert not sampler.requests


class OneWriteStore(InMemoryLightningStore):
    """Gives out no sequence ids apart from spans: an answer is recorded in one write."""

    async def get_many_span_sequence_ids(self, rollout_attempt_ids):
        raise AssertionError("a second write")


async def test_an_answer_is_one_write_and_its_span_gets_the_next_sequence_id(serve):
    store = OneWriteStore()
    server, _ = serve(["ok"], store=store)
    rollout, client = await started(server, store)
    for _ in range(2):
        await client.chat.completions.create(model="tiny", messages=QUESTION)
    assert [span.sequence_id for span in await spans_of(store, rollout)] == [1, 2]


class BrokenStore(InMemoryLightningStore):
    """Knows its rollouts, but takes no spans."""

    async def add_many_spans(self, spans):
        raise OSError("disk full")


async def test_a_store_that_fails_fails_the_call_and_is_logged(serve, caplog):
    store = BrokenStore()
    server, _ = serve(["ok"], store=store)
    _, client = await started(server, store)
    with pytest.raises(openai.InternalServerError, match="disk full"):
        await client.chat.completions.create(model="tiny", messages=QUESTION)
    assert "could not record" in caplog.text
