"""How much a rollout may ask of the model, as its agent and the store see it."""

from __future__ import annotations

import httpx
import openai
import pytest
from openai import AsyncOpenAI

from mini_agentic_rl.gateway.settings import GatewayLimits
from mini_agentic_rl.semconv import AGL_EXCEPTION, FAILURE_REASON
from mini_agentic_rl.store import InMemoryLightningStore
from mini_agentic_rl.types import Span

QUESTION = [{"role": "user", "content": "12+30?"}]


@pytest.fixture
async def rollout(store):
    return await store.start_rollout({"question": "12+30?"})


def _url(server, rollout, attempt_id=None):
    return server.as_resource().get_base_url(rollout.rollout_id, attempt_id or rollout.attempt.attempt_id)


async def _ask(url, **options):
    async with AsyncOpenAI(base_url=url, api_key="none", max_retries=3) as client:
        return await client.chat.completions.create(model="tiny", messages=QUESTION, **options)


async def _marks(store, rollout):
    spans = await store.query_spans(rollout.rollout_id, name=AGL_EXCEPTION)
    return [(span.attempt_id, span.attributes[FAILURE_REASON], span.status.status_code) for span in spans]


async def test_a_rollout_makes_as_many_calls_as_it_may_and_is_then_stopped_for_good(serve, store, rollout):
    server, sampler = serve(["ok"], store=store, limits=GatewayLimits(max_rollout_calls=2))
    url = _url(server, rollout)
    await _ask(url)
    await _ask(url)
    for _ in range(2):
        with pytest.raises(openai.PermissionDeniedError, match="made all its LLM calls") as refusal:
            await _ask(url)
        assert refusal.value.code == "rollout_budget_exceeded"
    assert len(sampler.requests) == 2
    reason = "the rollout has made all its LLM calls (max_rollout_calls=2)"
    assert await _marks(store, rollout) == [(rollout.attempt.attempt_id, reason, "ERROR")]


async def test_an_answer_is_cut_short_where_the_tokens_end_and_the_next_call_is_refused(serve, store, rollout):
    server, _ = serve(["word " * 50], store=store)
    alone = (await _ask(server.endpoint)).usage
    budget = 2 * alone.prompt_tokens + alone.completion_tokens + 5
    server, _ = serve(["word " * 50], store=store, limits=GatewayLimits(max_rollout_tokens=budget))
    url = _url(server, rollout)
    whole, cut = await _ask(url), await _ask(url)
    assert (whole.choices[0].finish_reason, whole.usage) == ("stop", alone)
    assert (cut.choices[0].finish_reason, cut.usage.completion_tokens) == ("length", 5)
    with pytest.raises(openai.PermissionDeniedError, match=f"used up its tokens .max_rollout_tokens={budget}"):
        await _ask(url)
    assert len(await _marks(store, rollout)) == 1


async def test_several_answers_to_one_call_share_what_is_left(serve, store, rollout):
    server, sampler = serve(["word " * 50], store=store, limits=GatewayLimits(max_rollout_tokens=60))
    answer = await _ask(_url(server, rollout), n=3)
    assert answer.usage.total_tokens <= 60
    assert {request.sampling.max_tokens for request in sampler.requests} == {answer.usage.completion_tokens // 3}


async def test_a_call_that_came_to_nothing_costs_nothing(serve, store, rollout):
    server, sampler = serve(["ok"], store=store, limits=GatewayLimits(max_rollout_calls=1, max_rollout_tokens=100))
    sampler.failure = RuntimeError("out of order")
    for _ in range(3):
        answer = httpx.post(f"{_url(server, rollout)}/chat/completions", json={"model": "tiny", "messages": QUESTION})
        assert answer.status_code == 500
    sampler.failure = None
    assert (await _ask(_url(server, rollout))).choices[0].message.content == "ok"


async def test_other_rollouts_a_further_attempt_and_calls_outside_have_their_own(serve, store, rollout):
    server, _ = serve(["ok"], store=store, limits=GatewayLimits(max_rollout_calls=1))
    other = await store.start_rollout({"question": "1+1?"})
    await _ask(_url(server, rollout))
    await _ask(_url(server, other))
    again = await store.start_attempt(rollout.rollout_id)
    await _ask(_url(server, rollout, again.attempt.attempt_id))
    for _ in range(3):
        await _ask(server.endpoint)
    with pytest.raises(openai.PermissionDeniedError):
        await _ask(_url(server, rollout))
    assert [mark[0] for mark in await _marks(store, rollout)] == [rollout.attempt.attempt_id]


class _FullStore(InMemoryLightningStore):
    async def add_span(self, span: Span) -> Span | None:
        raise OSError("no space left on device")


async def test_an_attempt_that_cannot_be_marked_is_stopped_all_the_same(serve, caplog):
    store = _FullStore()
    rollout = await store.start_rollout({"question": "?"})
    server, _ = serve(["word " * 50], store=store, limits=GatewayLimits(max_rollout_tokens=3))
    with pytest.raises(openai.PermissionDeniedError):
        await _ask(server.as_resource().get_base_url(rollout.rollout_id, rollout.attempt.attempt_id))
    assert f"could not mark attempt {rollout.attempt.attempt_id} of rollout {rollout.rollout_id}" in caplog.text


async def test_an_attempt_that_the_store_does_not_know_is_refused_before_anything_is_sampled(serve, store):
    server, sampler = serve(["ok"], store=store)
    rollout = await store.start_rollout({"question": "?"})
    for rollout_id, attempt_id in (("nobody", "never"), (rollout.rollout_id, "never")):
        with pytest.raises(openai.NotFoundError, match="cannot be recorded"):
            await _ask(server.as_resource().get_base_url(rollout_id, attempt_id))
    assert not sampler.requests


@pytest.mark.parametrize("seed", ["x", True])
async def test_a_rollout_whose_seed_is_no_integer_is_refused_and_told_why(serve, store, seed):
    server, sampler = serve(["ok"], store=store)
    rollout = await store.start_rollout({"question": "?"}, metadata={"sampling_seed": seed})
    with pytest.raises(openai.BadRequestError, match="sampling_seed"):
        await _ask(server.as_resource().get_base_url(rollout.rollout_id, rollout.attempt.attempt_id))
    assert not sampler.requests
