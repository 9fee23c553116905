"""Tools and system text over the chat templates of the main families."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import httpx
import pytest

from ..render.families import FAMILIES
from .trees import assert_one_branch, records_of, rollout_url

Json = dict[str, Any]

PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
QUESTION = {"role": "user", "content": "Porto or Rome?"}
SAMPLED = {
    "qwen 3": "<think>\nBoth.\n</think>\n\n"
    '<tool_call>\n{"name": "weather", "arguments": {"city": "7", "days": 2}}\n</tool_call>\n'
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome", "days": 3}}\n</tool_call>',
    "qwen 3.5": "Both.\n</think>\n\n"
    "<tool_call>\n<function=weather>\n<parameter=city>\n7\n</parameter>\n<parameter=days>\n2\n</parameter>\n"
    "</function>\n</tool_call>\n"
    "<tool_call>\n<function=weather>\n<parameter=city>\nRome\n</parameter>\n<parameter=days>\n3\n</parameter>\n"
    "</function>\n</tool_call>",
    "glm 4.5": "\n<think>Both.</think>"
    "\n<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>7</arg_value>\n"
    "<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>"
    "\n<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>\n"
    "<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>",
    "kimi k2": "<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>"
    '{"city": "7", "days": 2}<|tool_call_end|><|tool_call_begin|>functions.weather:1<|tool_call_argument_begin|>'
    '{"city": "Rome", "days": 3}<|tool_call_end|><|tool_calls_section_end|>',
    "deepseek v3": "<｜tool▁calls▁begin｜>"
    '<｜tool▁call▁begin｜>weather<｜tool▁sep｜>{"city": "7", "days": 2}<｜tool▁call▁end｜>'
    '<｜tool▁call▁begin｜>weather<｜tool▁sep｜>{"city": "Rome", "days": 3}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
    "minimax m2": "Both.\n</think>\n\n<minimax:tool_call>\n"
    '<invoke name="weather">\n<parameter name="city">7</parameter>\n<parameter name="days">2</parameter>\n</invoke>\n'
    '<invoke name="weather">\n<parameter name="city">Rome</parameter>\n<parameter name="days">3</parameter>\n'
    "</invoke>\n</minimax:tool_call>",
    "lfm 2": '<|tool_call_start|>[weather(city="7", days=2), weather(city="Rome", days=3)]<|tool_call_end|>',
    "lfm 2.5": '<|tool_call_start|>[weather(city="7", days=2), weather(city="Rome", days=3)]<|tool_call_end|>',
}
"""What a model of the family says when it calls a tool twice. The first city is text that looks like a number."""


def ask(url: str, messages: Sequence[Json], **more: Any) -> Json:
    """Return the choice that answers a chat request."""
    answer = httpx.post(
        f"{url}/chat/completions", json={"model": "tiny", "messages": messages, "max_tokens": 400, **more}
    )
    assert answer.status_code == 200, answer.text
    choice: Json = answer.json()["choices"][0]
    return choice


TOOL = {"type": "function", "function": {"name": "weather", "description": "Foretell.", "parameters": PARAMETERS}}


def system(text: str) -> Json:
    return {"role": "developer", "content": text}


def result(call_id: str, text: str) -> Json:
    return {"role": "tool", "tool_call_id": call_id, "content": text}


@pytest.fixture
def tokenizer(request):
    return FAMILIES[request.param].tokenizer()


@pytest.mark.parametrize(("tokenizer", "sampled"), SAMPLED.items(), indirect=["tokenizer"], ids=list(SAMPLED))
async def test_calls_in_the_models_own_form_are_calls_and_their_results_go_on_in_their_order(
    serve, store, tokenizer, sampled
):
    server, sampler = serve([sampled, "Rome."], store=store)
    rollout_id, url = await rollout_url(server, store)
    answer = ask(url, [QUESTION], tools=[TOOL])
    assert answer["finish_reason"] == "tool_calls"
    first, second = answer["message"]["tool_calls"]
    read = [json.loads(call["function"]["arguments"]) for call in (first, second)]
    assert read == [{"city": "7", "days": 2}, {"city": "Rome", "days": 3}]
    late = [result(second["id"], "sunny-in-Rome"), result(first["id"], "rain-in-Porto")]
    ask(url, [QUESTION, answer["message"], *late], tools=[TOOL])
    assert_one_branch(await records_of(store, rollout_id), 2)
    added = tokenizer.decode(sampler.requests[1].prompt_ids[len(sampler.requests[0].prompt_ids) :])
    assert added.index("rain-in-Porto") < added.index("sunny-in-Rome")
    tags = ("<tool_response>", "<|tool_response_start|>", "## Return of", "<｜tool▁output▁begin｜>", "<response>")
    assert sum(added.count(tag) for tag in tags) == 2


@pytest.mark.parametrize("tokenizer", SAMPLED, indirect=True)
def test_a_demanded_call_begins_in_the_models_own_form(serve, tokenizer, request):
    sampled = SAMPLED[request.node.callspec.params["tokenizer"]]
    call = sampled.rpartition("</think>")[2].lstrip()

    def rest(token_request):
        if token_request.constraint is not None:
            return call
        prompt = tokenizer.decode(token_request.prompt_ids)
        begun = max(size for size in range(len(call)) if prompt.endswith(call[:size]))
        assert begun
        return call[begun:]

    server, _ = serve(rest)
    answer = ask(server.endpoint, [QUESTION], tools=[TOOL], tool_choice="required")
    assert json.loads(answer["message"]["tool_calls"][0]["function"]["arguments"]) == {"city": "7", "days": 2}


@pytest.mark.parametrize("tokenizer", ["qwen 3.5", "llama 2", "gemma 2", "mistral tekken"], indirect=True)
def test_system_text_may_come_at_any_place(serve, tokenizer):
    server, sampler = serve(["Yes."])
    told = [system(text) for text in ("Be-terse.", "Be-kind.", "Be-quick.", "Be-sure.")]
    history = [*told[:2], QUESTION, {"role": "assistant", "content": "Rome."}, told[2], QUESTION, told[3]]
    ask(server.endpoint, history)
    text = tokenizer.decode(sampler.requests[0].prompt_ids)
    places = [text.index(part) for part in ("Be-terse.", "Be-kind.", "Rome.", "Be-quick.", "Be-sure.")]
    assert sorted(places) == places
    assert all(text.count(one["content"]) == 1 for one in told)


@pytest.mark.parametrize("tokenizer", ["qwen 3.5", "mistral v3", "mistral tekken", "gemma 2", "glm 4.5"], indirect=True)
def test_system_text_and_a_question_may_follow_the_results_of_tools(serve, tokenizer):
    server, sampler = serve(["Yes."])
    for after in ([system("Be-kind.")], [QUESTION], [system("Be-kind."), QUESTION]):
        call = {"id": "a1b2c3d4e", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
        called = {"role": "assistant", "content": None, "tool_calls": [call]}
        ask(server.endpoint, [QUESTION, called, result("a1b2c3d4e", "sunny"), *after])
        text = tokenizer.decode(sampler.requests[-1].prompt_ids)
        places = [text.rindex(part) for part in ("sunny", *(one["content"] for one in after))]
        assert sorted(places) == places
