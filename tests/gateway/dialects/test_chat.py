"""The OpenAI SDK's chat completions against the server over a real socket."""

from __future__ import annotations

import json

import openai
import pytest
from openai import OpenAI

from mini_agentic_rl.tokens import TokenDelta

from ..constraints.forms import accepts
from ..samples import CALCULATOR, CALL_TEXT, QUESTION, call_message, result_message
from ..small_tokenizer import THINKING

IDS = {"return_token_ids": True}
ASKED = {"model": "tiny", "messages": QUESTION}
LOOK_UP = {"type": "function", "function": {"name": "look_up"}}


def client_of(server):
    return OpenAI(base_url=server.endpoint, api_key="none", max_retries=0)


def collect(stream):
    """A stream folded into the shape of a complete answer: one dict for each choice."""
    choices: dict[int, dict] = {}
    for chunk in stream:
        for part in chunk.choices:
            choice = choices.setdefault(
                part.index, {"content": "", "thought": "", "calls": {}, "ids": [], "logprobs": [], "reason": None}
            )
            choice["content"] += part.delta.content or ""
            choice["thought"] += part.delta.model_extra.get("reasoning_content") or ""
            for call in part.delta.tool_calls or []:
                known = choice["calls"].setdefault(call.index, ["", ""])
                known[0] += call.function.name or ""
                known[1] += call.function.arguments or ""
            choice["ids"] += part.model_extra.get("token_ids") or []
            if part.logprobs:
                choice["logprobs"] += [entry.logprob for entry in part.logprobs.content]
            choice["reason"] = part.finish_reason or choice["reason"]
            choice["stopped"] = part.model_extra.get("stop_reason")
    return [choices[index] for index in sorted(choices)]


@pytest.mark.parametrize(
    ("content", "options"),
    [
        (f"Let me see.\n{CALL_TEXT}\n{CALL_TEXT}", {}),
        ("<tool_call>{broken</tool_call>", {"n": 3, "seed": 5}),
        ("naïve 🙂", {"max_tokens": 7}),
        ("", {}),
        ("The answer is 42. END and much more of it", {"stop": ["END", "zz"]}),
    ],
)
def test_a_stream_carries_what_a_whole_answer_carries(serve, content, options):
    server, sampler = serve([content], tokens_per_delta=2)
    client = client_of(server)
    asked = {**ASKED, "tools": [CALCULATOR], "logprobs": True, "extra_body": IDS, **options}
    whole = client.chat.completions.create(**asked)
    streamed = collect(client.chat.completions.create(**asked, stream=True))
    assert len(streamed) == len(whole.choices) == options.get("n", 1)
    for part, choice in zip(streamed, whole.choices, strict=True):
        ids = choice.model_extra["token_ids"]
        assert part["ids"] == ids
        assert part["content"] == (choice.message.content or "")
        assert part["reason"] == choice.finish_reason
        assert part["logprobs"] == [entry.logprob for entry in choice.logprobs.content]
        assert part["stopped"] == choice.model_extra.get("stop_reason") == ("END" if "stop" in options else None)
        calls = [(call.function.name, call.function.arguments) for call in choice.message.tool_calls or []]
        assert [tuple(call) for call in part["calls"].values()] == calls
    if "stop" in options:
        assert whole.choices[0].message.content == "The answer is 42. "
        assert sampler.tokenizer.decode(ids).endswith("END")
        assert sampler.closed_early == 2


def test_text_arrives_before_the_answer_is_complete(serve):
    server, sampler = serve(["one two three four five"], delay=0.02)
    stream = client_of(server).chat.completions.create(**ASKED, stream=True)
    for chunk in stream:
        if chunk.choices[0].delta.content:
            break
    assert sampler.active == 1
    stream.close()


def test_sampling_options_reach_the_sampler(ok):
    server, sampler = ok
    client_of(server).chat.completions.create(
        **ASKED,
        temperature=0,
        top_p=0.5,
        max_completion_tokens=9,
        n=3,
        seed=7,
        presence_penalty=0.5,
        frequency_penalty=-0.5,
        logit_bias={"11": -3},
        extra_body={"top_k": 4, "min_p": 0.1},
    )
    sampling = [request.sampling for request in sampler.requests]
    assert [params.seed for params in sampling] == [7, 8, 9]
    first = sampling[0]
    assert (first.temperature, first.top_p, first.top_k, first.min_p, first.max_tokens) == (0, 0.5, 4, 0.1, 9)
    assert (first.presence_penalty, first.frequency_penalty, first.logit_bias) == (0.5, -0.5, {11: -3})
    assert server.renderer.eos_ids == first.stop_token_ids


def test_top_logprobs_are_reported_for_each_token(serve):
    server, _ = serve(["ok 🙂"])
    answer = client_of(server).chat.completions.create(**ASKED, logprobs=True, top_logprobs=2, extra_body=IDS)
    entries = answer.choices[0].logprobs.content
    assert len(entries) == len(answer.choices[0].model_extra["token_ids"])
    assert all(len(entry.top_logprobs) == 2 for entry in entries)
    assert entries[0].bytes == list(entries[0].token.encode())
    assert any(entry.bytes is None for entry in entries)


def test_a_whole_answer_without_tokens_has_an_empty_list_of_logprobs(serve):
    async def complete(request):
        yield TokenDelta(finish_reason="stop")

    server, sampler = serve([])
    sampler.complete = complete
    answer = client_of(server).chat.completions.create(**ASKED, logprobs=True)
    assert answer.choices[0].logprobs.content == []


def test_only_the_allowed_tools_are_shown_and_one_is_called_where_that_is_required(serve, tokenizer):
    server, sampler = serve([CALL_TEXT])
    named = [{"type": "function", "function": {"name": "calculate"}}]
    for mode in ("auto", "required"):
        choice = {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": named}}
        answer = client_of(server).chat.completions.create(**ASKED, tools=[LOOK_UP, CALCULATOR], tool_choice=choice)
        assert answer.choices[0].message.tool_calls[0].function.name == "calculate"
        prompt = tokenizer.decode(sampler.requests[-1].prompt_ids)
        assert "Evaluate arithmetic" in prompt
        assert "look_up" not in prompt
        assert (sampler.requests[-1].constraint is not None) == (mode == "required")


def test_a_demanded_call_is_part_of_the_answer_and_is_continued_from(serve, tokenizer):
    server, sampler = serve([CALL_TEXT, "The answer is 42."])
    client = client_of(server)
    answer = client.chat.completions.create(**ASKED, tools=[CALCULATOR], tool_choice="required", stream=True)
    assert list(collect(answer)[0]["calls"].values()) == [["calculate", '{"expression": "12+30"}']]
    first = sampler.requests[0]
    assert tokenizer.decode(first.prompt_ids).endswith("<|im_start|>assistant\n")
    assert accepts(first.constraint(), [*tokenizer.encode(CALL_TEXT), tokenizer.eos_token_id])
    assert not accepts(first.constraint(), [*tokenizer.encode("No."), tokenizer.eos_token_id])
    messages = [*QUESTION, call_message(), result_message()]
    client.chat.completions.create(model="tiny", messages=messages, tools=[CALCULATOR])
    recorded = [*first.prompt_ids, *tokenizer.encode(CALL_TEXT), tokenizer.eos_token_id]
    assert list(sampler.requests[1].prompt_ids[: len(recorded)]) == recorded
    assert sampler.requests[1].constraint is None


@pytest.mark.parametrize(
    ("tools", "choice", "prefix", "rest"),
    [
        ([CALCULATOR], "required", "[calculate(", 'expression="12+30")]'),
        ([CALCULATOR, LOOK_UP], "required", "[", 'calculate(expression="12+30")]'),
    ],
)
def test_where_no_grammar_can_demand_a_call_it_begins_in_the_prompt(serve, tokenizer, tools, choice, prefix, rest):
    server, sampler = serve([rest, "The answer is 42."], tool_format="pythonic")
    client = client_of(server)
    answer = client.chat.completions.create(**ASKED, tools=tools, tool_choice=choice)
    (call,) = answer.choices[0].message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("calculate", {"expression": "12+30"})
    first = sampler.requests[0]
    assert first.constraint is None
    assert tokenizer.decode(first.prompt_ids).endswith(f"assistant\n{prefix}")
    client.chat.completions.create(model="tiny", messages=[*QUESTION, call_message(), result_message()], tools=tools)
    recorded = [*first.prompt_ids, *tokenizer.encode(rest), tokenizer.eos_token_id]
    assert list(sampler.requests[1].prompt_ids[: len(recorded)]) == recorded


def test_models_are_listed_and_choose_the_adapter(serve):
    server, sampler = serve(["ok"], adapters=("default", "other"))
    client = client_of(server)
    assert [model.id for model in client.models.list()] == ["tiny", "base", "default", "other"]
    assert client.models.retrieve("tiny").model_extra["max_model_len"] == sampler.context_length
    for name in ("tiny", "base", "other"):
        client.chat.completions.create(model=name, messages=QUESTION)
    assert [request.adapter for request in sampler.requests] == ["default", None, "other"]
    with pytest.raises(openai.NotFoundError, match="there is no model 'gpt'"):
        client.chat.completions.create(model="gpt", messages=QUESTION)
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt")


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"temperature": -1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"extra_body": {"repetition_penalty": 0}}, "repetition_penalty"),
        ({"n": 0}, "n"),
        ({"stop": ["a", "b", "c", "d", "e"]}, "stop"),
        ({"stop": ["a", ""]}, "stop[1]"),
        ({"stop": "x" * 1025}, "stop"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logit_bias": {"100000": 1}}, "logit_bias"),
        ({"logit_bias": {str(id_): 1 for id_ in range(301)}}, "logit_bias"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [CALCULATOR], "tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {}}}, "tool_choice.function.name"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools[0].type"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"messages": [{"role": "wizard", "content": "hi"}]}, "messages[0].role"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"extra_body": {"stop_token_ids": [10**9]}}, "stop_token_ids"),
        ({"extra_body": {"stop_token_ids": [-1]}}, "stop_token_ids[0]"),
        ({"extra_body": {"min_tokens": 9}, "max_tokens": 8}, "min_tokens"),
        ({"extra_body": {"min_tokens": 2}, "response_format": {"type": "json_object"}}, "min_tokens"),
        ({"extra_body": {"stream_options": {"include_usage": True}}}, "stream_options"),
        ({"extra_body": {"continue_final_message": True}}, "continue_final_message"),
        (
            {
                "messages": [*QUESTION, {"role": "assistant", "content": "The"}],
                "extra_body": {"continue_final_message": True, "add_generation_prompt": True},
            },
            "continue_final_message",
        ),
    ],
    ids=lambda value: str(value)[:50],
)
def test_a_bad_value_is_refused_with_the_name_of_its_field(ok, options, param):
    server, sampler = ok
    with pytest.raises(openai.BadRequestError) as caught:
        client_of(server).chat.completions.create(**ASKED | options)
    assert caught.value.param == param
    assert caught.value.type == "invalid_request_error"
    assert not sampler.requests


def test_a_prompt_beyond_the_context_is_refused_and_a_long_answer_is_bounded(serve):
    server, sampler = serve(["x" * 500], context_length=120)
    client = client_of(server)
    answer = client.chat.completions.create(**ASKED, max_tokens=1000)
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.total_tokens == 120
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "x" * 500}])
    assert caught.value.code == "context_length_exceeded"
    assert "120" in str(caught.value)
    assert sampler.active == 0


def test_without_parallel_calls_the_answer_ends_with_the_first(serve, tokenizer):
    server, sampler = serve([f"Let me see.\n{CALL_TEXT}\n{CALL_TEXT}"])
    asked = {**ASKED, "tools": [CALCULATOR], "parallel_tool_calls": False, "extra_body": IDS}
    (streamed,) = collect(client_of(server).chat.completions.create(**asked, stream=True))
    (whole,) = client_of(server).chat.completions.create(**asked).choices
    assert len(streamed["calls"]) == len(whole.message.tool_calls) == 1
    assert streamed["ids"] == whole.model_extra["token_ids"]
    assert tokenizer.decode(streamed["ids"]) == f"Let me see.\n{CALL_TEXT}"
    assert sampler.closed_early == 2


@pytest.mark.parametrize("stream", [False, True])
def test_the_thought_comes_as_reasoning_content_and_may_be_sent_back(serve, tokenizer, stream):
    tokenizer.chat_template = THINKING
    sampled = f"<think>\nuse the tool\n</think>\n\nHm.\n{CALL_TEXT}"
    server, sampler = serve([sampled, "<think>ok</think>42"])
    client = client_of(server)
    answer = client.chat.completions.create(**ASKED, tools=[CALCULATOR], stream=stream)
    if stream:
        (choice,) = collect(answer)
        thought, content, calls = choice["thought"], choice["content"], [name for name, _ in choice["calls"].values()]
    else:
        message = answer.choices[0].message
        thought, content = message.model_extra["reasoning_content"], message.content
        calls = [call.function.name for call in message.tool_calls]
    assert (thought, content, calls) == ("use the tool", "Hm.", ["calculate"])
    messages = [*QUESTION, {**call_message(content=content), "reasoning_content": thought}, result_message()]
    client.chat.completions.create(model="tiny", messages=messages, tools=[CALCULATOR])
    first, second = (request.prompt_ids for request in sampler.requests)
    assert list(second[: len(first) + len(tokenizer.encode(sampled))]) == [*first, *tokenizer.encode(sampled)]
