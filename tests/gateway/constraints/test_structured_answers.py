"""The OpenAI SDK and a real model with random weights: every answer has the demanded form."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Literal

import httpx
import numpy as np
import pytest
from openai import OpenAI
from pydantic import BaseModel, Field

from mini_agentic_rl.adapter import spans_to_records
from mini_agentic_rl.gateway.http.server import MiniLLMServer
from mini_agentic_rl.policy import EngineSettings, LearnerSettings, LoraSettings, Policy, load_model
from mini_agentic_rl.samplers import PolicySampler
from mini_agentic_rl.semconv import CompletionSpanAttributes as Attr
from mini_agentic_rl.store import InMemoryLightningStore
from mini_agentic_rl.tokens import TokenTree, pack
from tiny import tiny_model, tiny_tokenizer

from ..samples import QUESTION, openai_client, rollout_url
from .forms import PLACE, SHORT

BLOCKS = EngineSettings(block_size=4, cache_mib=4, max_batch_tokens=256)


class Step(BaseModel):
    kind: Literal["add", "take"]
    number: int = Field(ge=0, le=99)


class Plan(BaseModel):
    title: str = Field(max_length=8)
    sure: bool
    steps: list[Step] = Field(max_length=2)
    note: Literal["x", "yy"] | None


@pytest.fixture(scope="module")
def tokenizer():
    return tiny_tokenizer()


@pytest.fixture(scope="module")
def policy(tokenizer):
    model = tiny_model(len(tokenizer) + 37)  # a padded head: more logits than the tokenizer has tokens
    policy = Policy(load_model(model, lora=LoraSettings()), BLOCKS)
    yield policy
    policy.close()


@pytest.fixture(scope="module")
def store():
    return InMemoryLightningStore()


@pytest.fixture(scope="module")
def server(policy, tokenizer, store):
    sampler = PolicySampler(
        policy.engine, base_name="base", adapters=["default"], context_length=policy.model.context_length
    )
    with MiniLLMServer(sampler, tokenizer, model_name="tiny", store=store) as server:
        yield server


@pytest.fixture
def client(server):
    return OpenAI(base_url=server.endpoint, api_key="none", max_retries=0)


NUMBER = {
    "type": "object",
    "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["n"],
    "additionalProperties": False,
}
CHOICES = ["red", "green/blue", 'say "no"']
FORMS = {
    "choice": ({"choice": CHOICES}, lambda text: text in CHOICES),
    "regex": ({"regex": r"^[a-c]{2}/\d$"}, lambda text: re.fullmatch(r"[a-c]{2}/\d", text)),
    "json": ({"json": NUMBER}, lambda text: set(json.loads(text)) == {"n"}),
    "gbnf": (
        {"grammar": 'root ::= "SELECT " col\ncol ::= "a" | "b" | [0-9]\n'},
        lambda text: re.fullmatch("SELECT [ab0-9]", text),
    ),
    "lark": (
        {"grammar": 'start: "SELECT " COL\nCOL: "a" | "b" | /[0-9]/\n'},
        lambda text: re.fullmatch("SELECT [ab0-9]", text),
    ),
}


def _post(server, path, **body):
    answer = httpx.post(f"{server.endpoint}{path}", json={"model": "tiny", "temperature": 2, "seed": 5, **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize("name", FORMS)
def test_every_form_is_kept_in_every_dialect(server, name):
    form, holds = FORMS[name]
    body = {"max_tokens": 90, "structured_outputs": form}
    chat = _post(server, "/chat/completions", **body, messages=QUESTION)
    assert holds(chat["choices"][0]["message"]["content"])
    response = _post(server, "/responses", input="hi", max_output_tokens=90, structured_outputs=form)
    assert holds(response["output"][0]["content"][0]["text"])
    assert holds(_post(server, "/messages", **body, messages=QUESTION)["content"][0]["text"])
    assert holds(_post(server, "/completions", **body, prompt="hi")["choices"][0]["text"])


@pytest.mark.parametrize("bound", [1, 9])
def test_a_demanded_call_that_the_bound_cuts_off_leaves_no_text(client, bound):
    asked = {"model": "tiny", "messages": QUESTION, "tools": [PLACE], "tool_choice": "required", "max_tokens": bound}
    chunks = list(client.chat.completions.create(**asked, stream=True))
    assert not any(chunk.choices[0].delta.content for chunk in chunks)
    (choice,) = client.chat.completions.create(**asked).choices
    assert choice.finish_reason == "length"
    assert not choice.message.content


async def test_what_is_recorded_is_what_the_learner_computes_and_trains(server, store, policy, tokenizer):
    rollout_id, url = await rollout_url(server, store)
    client = openai_client(url)
    schema = {"type": "json_schema", "json_schema": {"name": "plan", "schema": Plan.model_json_schema()}}
    asked = {"model": "tiny", "messages": QUESTION, "temperature": 0.8, "max_tokens": 400}
    calls = asked | {"tools": [SHORT], "tool_choice": "required", "logprobs": True, "top_logprobs": 2}
    answers = await asyncio.gather(
        *(client.chat.completions.create(**asked, response_format=schema, seed=i) for i in range(2)),
        *(client.chat.completions.create(**calls, seed=i) for i in range(2)),
        client.chat.completions.create(**asked | {"max_tokens": 20}, seed=9),
    )
    spans = list(await store.query_spans(rollout_id, name=Attr.SPAN_NAME))
    records = [record for span in spans for record in spans_to_records([span])]
    assert len(records) == len(answers) == 5
    assert (
        len({Plan.model_validate_json(answer.choices[0].message.content).model_dump_json() for answer in answers[:2]})
        == 2
    )
    tree = TokenTree()
    for index, record in enumerate(records):
        tree.insert(record, index)
    packed = pack([tree])
    free = [record for record in records if record.forced is None]
    assert len(free) == 1
    assert packed.term_count == sum(record.trained_tokens for record in records)
    assert packed.term_count < sum(record.output_ids.size for record in records) - 5 * 4
    learner = policy.run(lambda: policy.learner(LearnerSettings()))
    learned = policy.run(lambda: learner.logprobs(packed)).numpy()
    assert np.abs(learned - packed.behaviour_logprobs_S).max() < 1e-4
    for record in records:
        if record.forced is not None and record.output_ids.size < 400:
            assert record.output_ids[-1] == tokenizer.eos_token_id
    entries = answers[2].choices[0].logprobs.content
    assert all(entry.top_logprobs[0].logprob >= entry.logprob for entry in entries)
    assert any(entry.top_logprobs[0].logprob > entry.logprob + 1 for entry in entries)  # not those of the masked one
