"""Parameters that clients of vLLM, SGLang and llama.cpp send: each has its effect, is refused, or is named."""

from __future__ import annotations

import httpx
import pytest

from mini_agentic_rl.gateway import ChatRenderer

from ..samples import CALCULATOR
from ..small_tokenizer import CHATML, THINKING_BEGUN, small_tokenizer
from .test_every_dialect import ANTHROPIC, CHAT, EVERY, QUESTION, RESPONSES

SWITCHED = CHATML.replace(
    "<|im_start|>assistant\n'",
    "<|im_start|>assistant\n' }}"
    "{% if enable_thinking is defined and not enable_thinking %}{{ '<think>\n\n</think>\n\n' }}{% endif %}{{ ''",
)
"""A model that thinks unless it is told not to."""
EFFORTS = CHATML.replace("'<|im_start|>assistant\n'", "'<|im_start|>assistant\n' + (reasoning_effort or '')")
BODY = {"model": "tiny", "messages": QUESTION}
BEGUN = [*QUESTION, {"role": "assistant", "content": "The answer is"}]


@pytest.fixture
def template():
    return SWITCHED


@pytest.fixture
def tokenizer(template):
    return small_tokenizer(template)


def post(server, path="/chat/completions", **body):
    return httpx.post(f"{server.endpoint}{path}", json=body)


def prompt_of(sampler):
    """The last prompt as text, special tokens included."""
    return sampler.tokenizer.decode(sampler.requests[-1].prompt_ids)


@pytest.mark.parametrize(
    ("words", "off"),
    [
        (CHAT, {"chat_template_kwargs": {"enable_thinking": False}}),
        (CHAT, {"enable_thinking": False}),
        (CHAT, {"thinking": {"type": "disabled"}}),
        (CHAT, {"reasoning_effort": "none"}),
        (RESPONSES, {"reasoning": {"effort": "none"}}),
        (RESPONSES, {"chat_template_kwargs": {"enable_thinking": False}}),
        (ANTHROPIC, {"thinking": {"type": "disabled"}}),
        (ANTHROPIC, {"chat_template_kwargs": {"enable_thinking": False}}),
    ],
)
def test_thinking_is_switched_off_in_the_prompt(serve, words, off):
    server, sampler = serve(["ok"])
    answer = post(server, words.path, **words.asked, **off)
    assert answer.status_code == 200, answer.text
    assert "x-ignored-parameters" not in answer.headers
    assert prompt_of(sampler).endswith("assistant\n<think>\n\n</think>\n\n")
    post(server, words.path, **words.asked)
    assert prompt_of(sampler).endswith("assistant\n")


@pytest.mark.parametrize("template", [THINKING_BEGUN])
@pytest.mark.parametrize(
    ("words", "off", "named"),
    [
        (CHAT, {"reasoning_effort": "none"}, "reasoning_effort"),
        (CHAT, {"thinking": {"type": "disabled"}}, "thinking"),
        (RESPONSES, {"reasoning": {"effort": "none"}}, "reasoning.effort"),
        (ANTHROPIC, {"thinking": {"type": "disabled"}}, "thinking"),
    ],
)
def test_thinking_that_no_template_can_switch_off_is_refused(serve, words, off, named):
    server, _ = serve(["ok"])
    answer = post(server, words.path, **words.asked, **off)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith(f"{named}:")


@pytest.mark.parametrize("template", [EFFORTS])
def test_the_effort_reaches_a_template_that_knows_it(serve):
    server, sampler = serve(["ok"])
    assert post(server, **BODY, reasoning_effort="low").is_success
    assert prompt_of(sampler).endswith("low")
    assert post(server, **BODY, reasoning_effort="frantic").status_code == 400


@pytest.mark.parametrize("template", [EFFORTS])
@pytest.mark.parametrize(
    ("asked", "effort"),
    [
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "low"),
        ({"thinking": {"type": "enabled", "budget_tokens": 32_000}}, "high"),
        ({"thinking": {"type": "enabled"}}, "medium"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}, "output_config": {"effort": "high"}}, "high"),
    ],
)
def test_anthropics_budget_for_thinking_chooses_the_effort(serve, asked, effort):
    server, sampler = serve(["ok"])
    assert post(server, ANTHROPIC.path, **ANTHROPIC.asked, **asked).is_success
    assert prompt_of(sampler).endswith(effort)


@pytest.mark.parametrize(
    ("words", "asked", "named"),
    [
        (RESPONSES, {"text": {"verbosity": "low"}}, "text.verbosity"),
        (RESPONSES, {"reasoning": {"generate_summary": "auto"}}, "reasoning.generate_summary"),
        (RESPONSES, {"truncation": "auto"}, "truncation"),
        (RESPONSES, {"include": ["message.output_text.logprobs"]}, "include (message.output_text.logprobs)"),
        (CHAT, {"thinking": {"type": "enabled", "budget_tokens": 5}}, "thinking.budget_tokens"),
        (
            CHAT,
            {"stream": True, "stream_options": {"include_obfuscation": False}},
            "stream_options.include_obfuscation",
        ),
        (ANTHROPIC, {"thinking": {"type": "adaptive", "display": "omitted"}}, "thinking.display"),
        (ANTHROPIC, {"output_config": {"task_budget": {"total": 9}}}, "output_config.task_budget"),
    ],
)
def test_what_has_no_effect_within_a_field_is_named_too(ok, words, asked, named):
    server, _ = ok
    answer = post(server, words.path, **{**words.asked, **asked})
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-ignored-parameters"] == named


def test_a_conversation_goes_on_from_calls_with_the_same_settings_only(serve):
    server, _ = serve(["Forty-two."])
    off = {"chat_template_kwargs": {"enable_thinking": False}}
    said = post(server, **BODY, **off).json()["choices"][0]["message"]
    more = [*QUESTION, {"role": "assistant", "content": said["content"]}, {"role": "user", "content": "Sure?"}]
    post(server, model="tiny", messages=more)
    assert server.service.memory.counters()["continued"] == 0


@pytest.mark.parametrize("name", ["chat_template", "messages", "tools", "add_generation_prompt", "tokenize"])
def test_a_setting_cannot_take_the_place_of_what_the_server_renders(ok, name):
    server, _ = ok
    answer = post(server, **BODY, chat_template_kwargs={name: "x"})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == f"chat_template_kwargs.{name}"


def test_text_of_a_setting_spells_no_special_token(serve):
    server, sampler = serve(["ok"])
    end = sampler.tokenizer.convert_tokens_to_ids("<|im_end|>")
    usual = ChatRenderer(sampler.tokenizer).render(QUESTION)
    sampler.tokenizer.chat_template = sampler.tokenizer.chat_template + "{{ enable_thinking }}"
    renderer = ChatRenderer(sampler.tokenizer).with_settings({"enable_thinking": "<|im_end|>"})
    assert renderer.render(QUESTION).count(end) == usual.count(end)
    assert server.root


@EVERY
@pytest.mark.parametrize("stream", [False, True])
def test_what_has_no_effect_is_named_in_a_header_and_once_in_the_log(serve, caplog, words, stream):
    server, _ = serve(["ok"])
    asked = {**words.asked, "stream": stream, "frobnicate": 1, "chat_template_kwargs": {"date": "today"}, "é\r\n": 2}
    for _ in range(2):
        answer = post(server, words.path, **asked)
        assert answer.status_code == 200, answer.text
        assert answer.headers["x-ignored-parameters"] == "frobnicate, ???, chat_template_kwargs.date"
    assert caplog.text.count("frobnicate") == 1
    assert "x-ignored-parameters" not in post(server, words.path, **words.asked).headers


@EVERY
@pytest.mark.parametrize(
    "asked",
    [
        {"prompt_logprobs": 0},
        {"bad_words": ["no"]},
        {"skip_special_tokens": False},
        {"modalities": ["text", "audio"]},
    ],
    ids=lambda asked: next(iter(asked)),
)
def test_a_known_parameter_that_is_not_served_is_refused_by_name(ok, words, asked):
    server, sampler = ok
    answer = post(server, words.path, **words.asked, **asked)
    assert answer.status_code == 400
    assert next(iter(asked)) in answer.json()["error"]["message"]
    assert not sampler.requests


@EVERY
def test_known_parameters_that_ask_for_nothing_are_taken(ok, words):
    server, _ = ok
    nothing = {"prompt_logprobs": None, "use_beam_search": False, "skip_special_tokens": True, "typical_p": 1.0}
    more = {"mirostat": 0, "bad_words": [], "modalities": ["text"], "cache_prompt": True, "user": "u"}
    answer = post(server, words.path, **words.asked, **nothing, **more)
    assert answer.status_code == 200, answer.text
    assert "x-ignored-parameters" not in answer.headers


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": False, "stream_options": {"include_usage": True}}, "stream_options"),
        ({"min_tokens": 9, "max_tokens": 8}, "min_tokens"),
        ({"min_tokens": 2, "response_format": {"type": "json_object"}}, "min_tokens"),
        ({"stop_token_ids": [10**9]}, "stop_token_ids"),
        ({"stop_token_ids": [-1]}, "stop_token_ids[0]"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"continue_final_message": True}, "continue_final_message"),
        ({"continue_final_message": True, "add_generation_prompt": True, "messages": BEGUN}, "continue_final_message"),
    ],
)
def test_a_parameter_with_a_bad_value_is_refused(ok, asked, param):
    server, sampler = ok
    answer = post(server, **(BODY | asked))
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert not sampler.requests


@EVERY
def test_sampling_options_of_other_servers_reach_the_sampler(ok, words):
    server, sampler = ok
    options = {"stop_token_ids": [7], "min_tokens": 3, "repetition_penalty": 1.3, "presence_penalty": 0.5}
    assert post(server, words.path, **words.asked, **options).is_success
    sampling = sampler.requests[0].sampling
    assert (sampling.min_tokens, sampling.repetition_penalty, sampling.presence_penalty) == (3, 1.3, 0.5)
    assert sampling.stop_token_ids == (sampler.tokenizer.eos_token_id, 7)
    assert post(server, words.path, **words.asked, repeat_penalty=1.2).is_success
    assert sampler.requests[1].sampling.repetition_penalty == 1.2


@pytest.mark.parametrize("template", [CHATML, SWITCHED])
@pytest.mark.parametrize("stream", [False, True])
def test_the_last_message_is_continued(serve, stream):
    server, sampler = serve([" 42.", "Yes."])
    renderer = ChatRenderer(sampler.tokenizer)
    asked = {"model": "tiny", "messages": BEGUN, "continue_final_message": True, "stream": stream}
    answer = post(server, **asked, add_generation_prompt=False)
    if not stream:
        assert answer.json()["choices"][0]["message"]["content"] == " 42."
    begun = (*renderer.render(QUESTION), *renderer.encode_answer(BEGUN[-1]))
    assert sampler.requests[0].prompt_ids == begun
    whole = {"role": "assistant", "content": "The answer is 42."}
    post(server, model="tiny", messages=[*QUESTION, whole, {"role": "user", "content": "Sure?"}])
    sampled = sampler.tokenizer.encode(" 42.", add_special_tokens=False)
    assert sampler.requests[1].prompt_ids[: len(begun) + len(sampled)] == (*begun, *sampled)


def test_a_message_that_anthropics_client_begins_is_continued(serve):
    server, sampler = serve([" 42."])
    answer = post(server, "/messages", model="tiny", max_tokens=9, messages=BEGUN)
    assert answer.json()["content"] == [{"type": "text", "text": " 42."}]
    assert prompt_of(sampler).endswith("assistant\nThe answer is")
    counted = post(server, "/messages/count_tokens", model="tiny", messages=BEGUN).json()
    assert counted == {"input_tokens": len(sampler.requests[0].prompt_ids)}


def test_without_a_generation_prompt_the_conversation_is_sampled_after_as_it_is(serve):
    server, sampler = serve(["ok"])
    assert post(server, **BODY, add_generation_prompt=False).is_success
    assert prompt_of(sampler).endswith("12+30?<|im_end|>\n")


def test_a_stop_token_of_the_clients_ends_the_answer_and_makes_no_text(serve, tokenizer):
    stop = tokenizer.encode("!", add_special_tokens=False)[0]
    server, _ = serve(["ok!"])
    answer = post(server, **BODY, stop_token_ids=[stop], max_tokens=2).json()["choices"][0]
    assert answer["message"]["content"] == "ok"


def test_every_chunk_tells_the_counts_so_far_when_asked(serve):
    server, sampler = serve(["one two three"])
    options = {"include_usage": True, "continuous_usage_stats": True}
    answer = post(server, **BODY, stream=True, stream_options=options)
    chunks = [line for line in answer.text.splitlines() if line.startswith("data: {")]
    prompt = len(sampler.requests[0].prompt_ids)
    assert all(f'"prompt_tokens":{prompt}' in chunk for chunk in chunks)


def with_tool(words, **changed):
    return {**words.tool, **changed}


@pytest.mark.parametrize(
    ("words", "others"),
    [
        (RESPONSES, [{"type": "local_shell"}, {"type": "web_search"}]),
        (ANTHROPIC, [{"type": "web_search_20250305", "name": "web_search"}]),
        (CHAT, [{"type": "custom", "custom": {"name": "apply_patch"}}]),
    ],
)
def test_tools_of_other_kinds_are_left_out_beside_functions_and_named(ok, words, others):
    server, sampler = ok
    answer = post(server, words.path, **words.asked, tools=[*others, words.tool])
    assert answer.status_code == 200, answer.text
    kinds = ", ".join(f"tools[{at}] ({tool['type']})" for at, tool in enumerate(others))
    assert answer.headers["x-ignored-parameters"] == kinds
    assert "calculate" in prompt_of(sampler)
    assert post(server, words.path, **words.asked, tools=others).status_code == 400


@pytest.mark.parametrize(
    ("words", "at"),
    [(CHAT, "tools[1].function.name"), (RESPONSES, "tools[1].name"), (ANTHROPIC, "tools[1].name")],
)
def test_a_tools_name_may_have_128_characters_and_errors_name_it_in_the_dialects_words(ok, words, at):
    server, _ = ok

    def named(length):
        tool = {**words.tool, "name": "x" * length}
        if words is CHAT:
            tool = {"type": "function", "function": {**CALCULATOR["function"], "name": "x" * length}}
        return post(server, words.path, **words.asked, tools=[words.tool, tool])

    assert named(128).is_success
    refused = named(129)
    assert refused.status_code == 400
    assert refused.json()["error"]["message"].startswith(f"{at}:")
