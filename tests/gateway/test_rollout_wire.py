"""agent-lightning 1.0's URLs: its agents' calls and events, in every dialect, and the pause of its trainers."""

from __future__ import annotations

import asyncio

import httpx
import openai
import pytest
from anthropic import Anthropic
from openai import OpenAI

from mini_agentic_rl.adapter import TraceToRecords
from mini_agentic_rl.emitter import find_final_reward
from mini_agentic_rl.types import LLM

QUESTION = [{"role": "user", "content": "12+30?"}]


@pytest.fixture
def attempt(store):
    """A rollout under way: its two ids."""

    async def begin():
        llm = LLM(endpoint="http://unused/v1", model="tiny", sampling_parameters={"temperature": 0.7})
        update = await store.add_resources({"llm": llm})
        found = await store.start_rollout({"question": "12+30?"}, mode="train", resources_id=update.resources_id)
        return found.rollout_id, found.attempt.attempt_id

    return asyncio.run(begin())


def urls(server, rollout_id, attempt_id="0", mode="train"):
    """What 1.0's controller puts into an agent's environment."""
    return (
        f"{server.root}/proxy/rollout/{rollout_id}/attempt/{attempt_id}/mode/{mode}/openai/v1",
        f"{server.root}/api/rollouts/{rollout_id}/attempt/{attempt_id}/events",
    )


def spans_of(store, attempt):
    return asyncio.run(store.query_spans(*attempt))


def test_an_agent_calls_and_leaves_its_reward(serve, store, attempt):
    server, sampler = serve(["It is 42."], store=store, api_key="secret")
    base_url, event_url = urls(server, attempt[0])
    client = OpenAI(base_url=base_url, api_key="secret")
    answer = client.chat.completions.create(model="auto", messages=QUESTION, temperature=0.1)
    assert answer.choices[0].message.content == "It is 42."
    assert answer.choices[0].model_extra["token_ids"]  # asked for or not, as there
    event = {"event_type": "reward", "data": {"value": 1, "source": "agent"}}
    left = httpx.post(event_url, json=event, headers={"Authorization": "Bearer secret"}).raise_for_status().json()
    assert (left["event_type"], left["data"]["value"], left["attempt_id"]) == ("reward", 1, "0")
    spans = spans_of(store, attempt)
    (record,) = TraceToRecords().adapt(spans)
    assert record.temperature == 0.7  # of the rollout's resources, whatever the agent asked for
    assert sampler.requests[0].sampling.temperature == 0.7
    assert find_final_reward(spans) == 1.0


def test_what_1_0_refuses_is_served_under_its_url(serve, store, attempt):
    server, _ = serve(["It is 42."], store=store)
    base_url, _ = urls(server, *attempt, mode="val")
    client = OpenAI(base_url=base_url, api_key="none")
    chunks = list(client.chat.completions.create(model="auto", messages=QUESTION, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "It is 42."
    assert client.responses.create(model="auto", input="12+30?").output_text == "It is 42."
    anthropic = Anthropic(base_url=base_url.removesuffix("/v1"), api_key="none")
    message = anthropic.messages.create(model="auto", max_tokens=16, messages=QUESTION)
    assert message.content[0].text == "It is 42."
    raw = client.completions.create(model="auto", prompt=[5, 6, 7], max_tokens=16)
    assert (raw.choices[0].text, raw.choices[0].model_extra["prompt_token_ids"]) == ("It is 42.", [5, 6, 7])
    records = TraceToRecords().adapt(spans_of(store, attempt))
    assert len(records) == 2  # one prompt in three dialects, the last answer to which counts, and one of ids
    assert records[1].prompt_ids.tolist() == [5, 6, 7]


def test_events_are_read_back_as_a_trainer_reads_them(serve, store, attempt):
    server, _ = serve(["It is 42."], store=store)
    base_url, event_url = urls(server, *attempt)
    OpenAI(base_url=base_url, api_key="none").chat.completions.create(model="auto", messages=QUESTION)
    for event in ({"event_type": "note", "data": {"step": 1}}, {"event_type": "reward", "data": {"value": 0.5}}):
        httpx.post(event_url, json=event).raise_for_status()
    url = f"{server.root}/api/rollouts/{attempt[0]}"
    whole = httpx.get(f"{url}/events").json()
    assert [event["event_type"] for event in whole] == ["model_request", "note", "reward"]
    assert whole[0]["data"]["response"]["choices"][0]["message"]["content"] == "It is 42."
    short = httpx.get(f"{url}/events", params={"format": "triplet"}).json()
    (record,) = TraceToRecords().adapt(spans_of(store, attempt))
    assert short[0]["data"]["response_token_ids"] == record.output_ids.tolist()
    assert short[0]["data"]["response_log_probs"] == pytest.approx(record.logprobs.tolist())
    assert short[2]["data"] == {"value": 0.5}
    detail = httpx.get(url).json()
    assert (detail["rollout"]["status"]["state"], detail["attempts"]) == ("running", [attempt[1]])


def test_while_weights_change_an_agent_is_told_when_to_come_again(serve, store, attempt):
    server, _ = serve(["It is 42."], store=store)
    base_url, _ = urls(server, *attempt)
    server.pause()
    refused = httpx.post(f"{base_url}/chat/completions", json={"model": "auto", "messages": QUESTION})
    assert (refused.status_code, refused.headers["retry-after"], refused.headers["x-agl-paused"]) == (429, "5", "true")
    server.resume()
    state = httpx.post(f"{server.root}/proxy/pause", json={"retry_after_seconds": 0, "reason": "new weights"}).json()
    assert state == {"paused": True, "retry_after_seconds": 0, "reason": "new weights", "inflight": 0}
    client = OpenAI(base_url=base_url, api_key="none", max_retries=0)
    with pytest.raises(openai.RateLimitError, match="new weights"):
        client.chat.completions.create(model="auto", messages=QUESTION)
    plain = OpenAI(base_url=server.endpoint, api_key="none")
    assert plain.chat.completions.create(model="tiny", messages=QUESTION).choices  # other URLs are not concerned
    assert not httpx.post(f"{server.root}/proxy/resume").json()["paused"]
    assert client.chat.completions.create(model="auto", messages=QUESTION).choices
    assert httpx.get(f"{server.root}/healthz").json()["status"] == "ok"


@pytest.mark.parametrize(
    ("value", "told"), [(None, "None"), ("high", "'high'"), (float("inf"), "finite")], ids=["none", "text", "infinite"]
)
def test_a_reward_that_is_no_number_is_refused_and_not_left(serve, store, attempt, value, told):
    server, _ = serve(["ok"], store=store)
    _, event_url = urls(server, *attempt)
    literal = "Infinity" if value == float("inf") else {None: "null"}.get(value, '"high"')
    answer = httpx.post(event_url, content=f'{{"event_type": "reward", "data": {{"value": {literal}}}}}')
    assert answer.status_code == 400
    assert told in answer.json()["error"]["message"]
    assert not spans_of(store, attempt).items


def test_what_is_not_there_is_said_in_one_line(serve, store, attempt):
    server, _ = serve(["ok"], store=store)
    body = {"model": "auto", "messages": QUESTION}
    unknown, _ = urls(server, "ro-none")
    assert "ro-none" in httpx.post(f"{unknown}/chat/completions", json=body).json()["error"]["message"]
    strange, _ = urls(server, *attempt, mode="test")
    answer = httpx.post(f"{strange}/chat/completions", json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "mode_unknown")
    _, event_url = urls(server, attempt[0], "at-none")
    assert httpx.post(event_url, json={"event_type": "note"}).status_code == 404


def test_a_completion_is_sampled_after_the_prompt_as_it_is(serve, tokenizer):
    server, sampler = serve(["forty-two"])
    client = OpenAI(base_url=server.endpoint, api_key="none")
    text = client.completions.create(model="tiny", prompt="12+30=", max_tokens=2, logprobs=1)
    assert list(sampler.requests[0].prompt_ids) == tokenizer.encode("12+30=", add_special_tokens=False)
    (choice,) = text.choices
    assert (choice.finish_reason, text.usage.completion_tokens) == ("length", 2)
    assert "".join(choice.logprobs.tokens) == choice.text
    assert choice.logprobs.token_logprobs == [-0.5, -1.0]
    assert choice.logprobs.text_offset == [0, len(choice.logprobs.tokens[0])]
    streamed = client.completions.create(model="tiny", prompt="12+30=", max_tokens=50, stream=True)
    assert "".join(chunk.choices[0].text for chunk in streamed) == "forty-two"
    for prompt in ([], [-1], ["a", "b"], [2**40]):
        with pytest.raises(openai.BadRequestError, match="prompt"):
            client.completions.create(model="tiny", prompt=prompt)
    with pytest.raises(openai.BadRequestError, match="echo is not served"):
        client.completions.create(model="tiny", prompt="a", echo=True)
