"""The real OpenAI SDK against a real model of random weights: whatever it wants to say, the form is kept."""

from __future__ import annotations

import asyncio
import json
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

import httpx
import numpy as np
import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel, Field

from mini_agentic_rl.adapter import spans_to_records
from mini_agentic_rl.gateway.http.server import MiniLLMServer
from mini_agentic_rl.policy import EngineSettings, LearnerSettings, LoraSettings, Policy, load_model
from mini_agentic_rl.samplers import PolicySampler
from mini_agentic_rl.semconv import CompletionSpanAttributes as Attr
from mini_agentic_rl.store import InMemoryLightningStore
from mini_agentic_rl.tokens import TokenTree, pack
from tiny import tiny_model, tiny_tokenizer

from .test_grammars import PLACE, SHORT

QUESTION = [{"role": "user", "content": "12+30?"}]
IDS = {"return_token_ids": True}
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


def test_each_seed_gives_another_answer_of_the_form(client):
    def ask(seed):
        return client.chat.completions.parse(
            model="tiny", messages=QUESTION, response_format=Plan, seed=seed, max_tokens=400
        )

    said = set()
    with ThreadPoolExecutor(12) as pool:
        for answer in pool.map(ask, range(12)):
            assert answer.choices[0].finish_reason == "stop"
            assert isinstance(answer.choices[0].message.parsed, Plan)
            said.add(answer.choices[0].message.content)
    assert len(said) == 12


NUMBER = {
    "type": "object",
    "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["n"],
    "additionalProperties": False,
}
SAID = ["red", "green/blue", 'say "no"']
GBNF = 'root ::= "SELECT " col\ncol ::= "a" | "b" | [0-9]\n'
LARK = 'start: "SELECT " COL\nCOL: "a" | "b" | /[0-9]/\n'
FORMS = {
    "choice": ({"choice": SAID}, lambda text: text in SAID),
    "regex": ({"regex": r"^[a-c]{2}/\d$"}, lambda text: re.fullmatch(r"[a-c]{2}/\d", text)),
    "json": ({"json": NUMBER}, lambda text: set(json.loads(text)) == {"n"}),
    "json text": ({"json": json.dumps(NUMBER)}, lambda text: set(json.loads(text)) == {"n"}),
    "gbnf": ({"grammar": GBNF}, lambda text: re.fullmatch("SELECT [ab0-9]", text)),
    "lark": ({"grammar": LARK}, lambda text: re.fullmatch("SELECT [ab0-9]", text)),
}
OLD = {"choice": "guided_choice", "regex": "guided_regex", "json": "guided_json", "grammar": "guided_grammar"}
LLAMA = {"grammar": "grammar", "json": "json_schema"}
SGLANG = {"grammar": "ebnf", "regex": "regex"}


SPELLINGS = [(form, {"structured_outputs": given}) for form, (given, _) in FORMS.items()] + [
    (form, {names[kind]: value for kind, value in given.items()})
    for names in (OLD, LLAMA, SGLANG)
    for form, (given, _) in FORMS.items()
    if given.keys() <= names.keys()
]


@pytest.mark.parametrize(("form", "asked"), SPELLINGS)
def test_every_servers_field_for_a_form_holds_the_answer_to_it(server, form, asked):
    _, holds = FORMS[form]
    body = {"model": "tiny", "temperature": 2, "seed": 5, **asked}
    chat = httpx.post(f"{server.endpoint}/chat/completions", json={**body, "messages": QUESTION, "max_tokens": 90})
    assert chat.status_code == 200, chat.text
    assert holds(chat.json()["choices"][0]["message"]["content"])
    responses = httpx.post(f"{server.endpoint}/responses", json={**body, "input": "hi", "max_output_tokens": 90})
    assert holds(responses.json()["output"][0]["content"][0]["text"])
    messages = httpx.post(f"{server.endpoint}/messages", json={**body, "messages": QUESTION, "max_tokens": 90})
    assert holds(messages.json()["content"][0]["text"])
    text = httpx.post(f"{server.endpoint}/completions", json={**body, "prompt": "hi", "max_tokens": 90})
    assert holds(text.json()["choices"][0]["text"])


@pytest.mark.parametrize(
    "wanted",
    [{"type": "json_object", "schema": NUMBER}, {"type": "json_schema", "schema": NUMBER}],
    ids=lambda wanted: wanted["type"],
)
def test_a_schema_beside_the_type_holds(server, wanted):
    body = {"model": "tiny", "temperature": 2, "max_tokens": 90, "messages": QUESTION, "response_format": wanted}
    answer = httpx.post(f"{server.endpoint}/chat/completions", json=body).json()
    assert set(json.loads(answer["choices"][0]["message"]["content"])) == {"n"}
    asked = {"model": "tiny", "temperature": 2, "input": "hi"}
    asked["text"] = {"format": {"type": "json_object", "schema": NUMBER}}
    answer = httpx.post(f"{server.endpoint}/responses", json=asked).json()
    assert set(json.loads(answer["output"][0]["content"][0]["text"])) == {"n"}
    body |= {"response_format": None, "output_format": {"type": "json_schema", "schema": NUMBER}}
    answer = httpx.post(f"{server.endpoint}/messages", json=body).json()
    assert set(json.loads(answer["content"][0]["text"])) == {"n"}


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
        ({"structured_outputs": {"choice": ["a"], "regex": "b"}}, "structured_outputs"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs.structural_tag"),
        ({"structured_outputs": {"whitespace_pattern": " "}}, "structured_outputs.whitespace_pattern"),
        ({"structured_outputs": {"grammar": "root ::= ("}}, "structured_outputs.grammar"),
        ({"structured_outputs": {"regex": "[a-"}}, "structured_outputs"),
        ({"structured_outputs": {"json": "no json"}}, "structured_outputs.json"),
        ({"guided_choice": "red"}, "guided_choice"),
        ({"guided_regex": "("}, "guided_regex"),
        ({"guided_json": "[1]"}, "guided_json"),
        ({"guided_json": {"type": "nonsense"}}, "guided_json"),
        ({"guided_grammar": "start: missing"}, "guided_grammar"),
        ({"grammar": "root ::= missing"}, "grammar"),
        ({"guided_json": NUMBER, "response_format": {"type": "json_object"}}, "guided_json"),
        ({"response_format": {"type": "text", "schema": NUMBER}}, "response_format"),
        ({"response_format": {"type": "json_object", "schema": {"type": "nonsense"}}}, "response_format"),
        ({"response_format": {"type": "grammar", "grammar": GBNF}}, "response_format"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_form_that_cannot_be_kept_is_refused_and_named(server, asked, param):
    body = {"model": "tiny", "max_tokens": 9, "messages": QUESTION, **asked}
    answer = httpx.post(f"{server.endpoint}/chat/completions", json=body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"].startswith(param)
    if "response_format" not in asked:
        answer = httpx.post(f"{server.endpoint}/responses", json={"model": "tiny", "input": "hi", **asked})
        assert answer.status_code == 400, answer.text
        assert answer.json()["error"]["param"].startswith(param)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("bound", [1, 4, 9])
def test_a_demanded_call_that_the_bound_cuts_off_leaves_no_text(client, bound, stream):
    asked = {"model": "tiny", "messages": QUESTION, "tools": [PLACE], "tool_choice": "required", "max_tokens": bound}
    if stream:
        chunks = list(client.chat.completions.create(**asked, stream=True))
        assert not any(chunk.choices[0].delta.content for chunk in chunks)
        return
    (choice,) = client.chat.completions.create(**asked).choices
    assert choice.finish_reason == "length"
    assert not choice.message.content


def test_json_cut_off_by_the_length_bound_says_so(client):
    asked = {"model": "tiny", "messages": QUESTION, "response_format": Plan, "max_tokens": 5}
    with pytest.raises(openai.LengthFinishReasonError):
        client.chat.completions.parse(**asked)
    answer = client.chat.completions.create(
        **asked | {"response_format": {"type": "json_object"}}, temperature=2, extra_body=IDS
    )
    assert answer.choices[0].finish_reason in ("length", "stop")
    assert answer.choices[0].message.content.startswith("{")


async def test_what_is_recorded_is_what_the_learner_computes_and_trains(server, store, policy, tokenizer):
    rollout = await store.start_rollout({"question": "12+30?"})
    base_url = server.as_resource({}).get_base_url(rollout.rollout_id, rollout.attempt.attempt_id)
    client = AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0)
    schema = {"type": "json_schema", "json_schema": {"name": "plan", "schema": Plan.model_json_schema()}}
    asked = {"model": "tiny", "messages": QUESTION, "temperature": 0.8, "max_tokens": 400}
    answers = await asyncio.gather(
        *(client.chat.completions.create(**asked, response_format=schema, seed=i) for i in range(4)),
        *(
            client.chat.completions.create(
                **asked, tools=[SHORT], tool_choice="required", seed=i, logprobs=True, top_logprobs=2
            )
            for i in range(4)
        ),
        client.chat.completions.create(**asked | {"max_tokens": 20}, seed=9),
    )
    spans = list(await store.query_spans(rollout.rollout_id, name=Attr.SPAN_NAME))
    records = [record for span in spans for record in spans_to_records([span])]
    assert len(records) == len(answers) == 9
    tree = TokenTree()
    for index, record in enumerate(records):
        tree.insert(record, index)
    packed = pack([tree])
    free = [record for record in records if record.forced is None]
    assert len(free) == 1
    assert packed.term_count == sum(record.trained_tokens for record in records)
    assert packed.term_count < sum(record.output_ids.size for record in records) - 9 * 4
    learner = policy.run(lambda: policy.learner(LearnerSettings()))
    learned = policy.run(lambda: learner.logprobs(packed)).numpy()
    assert np.abs(learned - packed.behaviour_logprobs_S).max() < 1e-4
    for record in records:
        if record.forced is not None and record.output_ids.size < 400:
            assert record.output_ids[-1] == tokenizer.eos_token_id
    entries = answers[4].choices[0].logprobs.content
    assert all(entry.top_logprobs[0].logprob >= entry.logprob for entry in entries)
    assert any(entry.top_logprobs[0].logprob > entry.logprob + 1 for entry in entries)  # not those of the masked one


async def test_constrained_and_free_requests_at_once_do_not_disturb_each_other(server):
    client = AsyncOpenAI(base_url=server.endpoint, api_key="none", max_retries=0)
    forms = [{}, {"response_format": {"type": "json_object"}}, {"tools": [SHORT], "tool_choice": "required"}, {}]

    async def ask(index):
        answer = await client.chat.completions.create(
            model="tiny", messages=QUESTION, seed=index, max_tokens=60, **forms[index % 4], extra_body=IDS
        )
        return answer.choices[0].model_extra["token_ids"]

    together = await asyncio.gather(*(ask(index) for index in range(16)))
    for index in range(0, 16, 4):
        assert together[index] == await ask(index)
        assert together[index + 3] == await ask(index + 3)
