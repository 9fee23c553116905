"""Tools and system text over the chat templates of the main families, asked for in the words of every dialect."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
    "glm 4.7": "\n<think>Both.</think><tool_call>weather<arg_key>city</arg_key><arg_value>7</arg_value>"
    "<arg_key>days</arg_key><arg_value>2</arg_value></tool_call><tool_call>weather<arg_key>city</arg_key>"
    "<arg_value>Rome</arg_value><arg_key>days</arg_key><arg_value>3</arg_value></tool_call>",
    "lfm 2": '<|tool_call_start|>[weather(city="7", days=2), weather(city="Rome", days=3)]<|tool_call_end|>',
    "lfm 2.5": '<|tool_call_start|>[weather(city="7", days=2), weather(city="Rome", days=3)]<|tool_call_end|>',
}
"""What a model of the family says when it calls a tool twice. The first city is text that looks like a number."""


@dataclass(frozen=True)
class Words:
    """A dialect: its requests, and what its clients send back."""

    path: str
    history: str
    """The field with the conversation."""
    tool: Json
    system: Callable[[str], Json]
    """A system message in the conversation."""
    said: Callable[[Json], list[Json]]
    """The part of the history that an answer becomes."""
    calls: Callable[[Json], list[tuple[str, Any]]]
    """Ids and arguments of the calls in an answer."""
    results: Callable[[Sequence[tuple[str, str]]], list[Json]]
    """Ids of calls and their results as a part of the history."""
    finish: Callable[[Json], str]
    called: Callable[[str], list[Json]]
    """An answer with a call of that id as a part of the history."""

    def ask(self, url: str, history: Sequence[Json], **more: Any) -> Json:
        asked = {"model": "tiny", self.history: list(history), **more}
        asked |= {"max_tokens": 400} if self.path == "/messages" else {}
        answer = httpx.post(f"{url}{self.path}", json=asked)
        assert answer.status_code == 200, answer.text
        body: Json = answer.json()
        return body


CHAT = Words(
    "/chat/completions",
    "messages",
    {"type": "function", "function": {"name": "weather", "description": "Foretell.", "parameters": PARAMETERS}},
    lambda text: {"role": "developer", "content": text},
    lambda body: [body["choices"][0]["message"]],
    lambda body: [
        (one["id"], one["function"]["arguments"]) for one in body["choices"][0]["message"].get("tool_calls", ())
    ],
    lambda results: [{"role": "tool", "tool_call_id": id_, "content": text} for id_, text in results],
    lambda body: body["choices"][0]["finish_reason"],
    lambda id_: [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": id_, "type": "function", "function": {"name": "weather", "arguments": "{}"}}],
        }
    ],
)
RESPONSES = Words(
    "/responses",
    "input",
    {"type": "function", "name": "weather", "description": "Foretell.", "parameters": PARAMETERS},
    lambda text: {"role": "developer", "content": text},
    lambda body: body["output"],
    lambda body: [(one["call_id"], one["arguments"]) for one in body["output"] if one["type"] == "function_call"],
    lambda results: [{"type": "function_call_output", "call_id": id_, "output": text} for id_, text in results],
    lambda body: {"function_call": "tool_calls"}.get(body["output"][-1]["type"], "stop"),
    lambda id_: [{"type": "function_call", "call_id": id_, "name": "weather", "arguments": "{}"}],
)
ANTHROPIC = Words(
    "/messages",
    "messages",
    {"name": "weather", "description": "Foretell.", "input_schema": PARAMETERS},
    lambda text: {"role": "system", "content": text},
    lambda body: [{"role": "assistant", "content": body["content"]}],
    lambda body: [(one["id"], one["input"]) for one in body["content"] if one["type"] == "tool_use"],
    lambda results: [
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": id_, "content": text} for id_, text in results],
        }
    ],
    lambda body: {"tool_use": "tool_calls"}.get(body["stop_reason"], "stop"),
    lambda id_: [{"role": "assistant", "content": [{"type": "tool_use", "id": id_, "name": "weather", "input": {}}]}],
)
EVERY = pytest.mark.parametrize("words", [CHAT, RESPONSES, ANTHROPIC], ids=["chat", "responses", "anthropic"])


@pytest.fixture
def tokenizer(request):
    return FAMILIES[request.param].tokenizer()


@EVERY
@pytest.mark.parametrize(("tokenizer", "sampled"), SAMPLED.items(), indirect=["tokenizer"], ids=list(SAMPLED))
async def test_calls_in_the_models_own_form_are_calls_and_their_results_go_on_in_their_order(
    serve, store, tokenizer, words, sampled
):
    server, sampler = serve([sampled, "Rome."], store=store)
    rollout_id, url = await rollout_url(server, store)
    answer = words.ask(url, [QUESTION], tools=[words.tool])
    assert words.finish(answer) == "tool_calls"
    (first, arguments), (second, others) = words.calls(answer)
    read = [json.loads(one) if isinstance(one, str) else one for one in (arguments, others)]
    assert read == [{"city": "7", "days": 2}, {"city": "Rome", "days": 3}]
    late = words.results([(second, "sunny-in-Rome"), (first, "rain-in-Porto")])
    words.ask(url, [QUESTION, *words.said(answer), *late], tools=[words.tool])
    assert_one_branch(await records_of(store, rollout_id), 2)
    added = tokenizer.decode(sampler.requests[1].prompt_ids[len(sampler.requests[0].prompt_ids) :])
    assert added.index("rain-in-Porto") < added.index("sunny-in-Rome")
    assert {added.count(tag) for tag in ("<tool_response>", "<|tool_response_start|>")} == {0, 2}


@pytest.mark.parametrize("demanded", ["required", {"type": "function", "function": {"name": "weather"}}])
@pytest.mark.parametrize("tokenizer", SAMPLED, indirect=True)
def test_a_demanded_call_begins_in_the_models_own_form(serve, tokenizer, request, demanded):
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
    answer = CHAT.ask(server.endpoint, [QUESTION], tools=[CHAT.tool], tool_choice=demanded)
    assert json.loads(CHAT.calls(answer)[0][1]) == {"city": "7", "days": 2}


@EVERY
@pytest.mark.parametrize(
    "tokenizer", ["qwen 3.5", "granite 3", "llama 2", "gemma 2", "mistral tekken", "lfm 2"], indirect=True
)
def test_system_text_may_come_at_any_place(serve, tokenizer, words):
    server, sampler = serve(["Yes."])
    told = [words.system(text) for text in ("Be-terse.", "Be-kind.", "Be-quick.", "Be-sure.")]
    history = [*told[:2], QUESTION, {"role": "assistant", "content": "Rome."}, told[2], QUESTION, told[3]]
    words.ask(server.endpoint, history)
    text = tokenizer.decode(sampler.requests[0].prompt_ids)
    places = [text.index(part) for part in ("Be-terse.", "Be-kind.", "Rome.", "Be-quick.", "Be-sure.")]
    assert sorted(places) == places
    assert all(text.count(one["content"]) == 1 for one in told)


@EVERY
@pytest.mark.parametrize("tokenizer", ["qwen 3.5", "mistral v3", "mistral tekken", "gemma 2", "glm 4.5"], indirect=True)
def test_system_text_and_a_question_may_follow_the_results_of_tools(serve, tokenizer, words):
    server, sampler = serve(["Yes."])
    for after in ([words.system("Be-kind.")], [QUESTION], [words.system("Be-kind."), QUESTION]):
        called = words.called("a1b2c3d4e")
        words.ask(server.endpoint, [QUESTION, *called, *words.results([("a1b2c3d4e", "sunny")]), *after])
        text = tokenizer.decode(sampler.requests[-1].prompt_ids)
        places = [text.rindex(part) for part in ("sunny", *(one["content"] for one in after))]
        assert sorted(places) == places


@pytest.mark.parametrize("tokenizer", ["qwen 3.5", "gemma 2"], indirect=True)
@pytest.mark.parametrize(("words", "field"), [(RESPONSES, "instructions"), (ANTHROPIC, "system")])
def test_instructions_and_a_system_message_are_both_told(serve, tokenizer, words, field):
    server, sampler = serve(["Yes."])
    words.ask(server.endpoint, [words.system("Be kind."), QUESTION], **{field: "Be terse."})
    text = tokenizer.decode(sampler.requests[0].prompt_ids)
    assert "Be terse.\n\nBe kind." in text
