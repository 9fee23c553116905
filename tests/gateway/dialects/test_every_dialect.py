"""Every dialect over the same behaviour, and the parameters of other servers: served, refused or reported."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mini_agentic_rl.gateway import ChatRenderer
from mini_agentic_rl.gateway.dialects import (
    AnthropicDialect,
    ChatDialect,
    Dialect,
    ResponsesDialect,
    parse_chat_request,
    shared_dialects,
)
from mini_agentic_rl.gateway.errors import UnavailableError
from mini_agentic_rl.gateway.render.messages import plain_messages
from mini_agentic_rl.http import HttpError, encode, json_object

from ..samples import CALCULATOR, CALL_TEXT, FUNCTION, QUESTION
from ..small_tokenizer import CHATML, THINKING_BEGUN, small_tokenizer
from .chunks import chunk

Json = dict[str, Any]


@dataclass(frozen=True)
class Words:
    """The requests of a dialect, and how its answers are read."""

    dialect: Callable[[], Dialect]
    asked: Json
    tool: Json
    demands: tuple[Any, ...]
    """Values of `tool_choice` that demand a call of the calculator."""
    none: Any
    """The value of `tool_choice` that forbids calls."""
    read: Callable[[Json], tuple[str, list[str]]]
    """Returns the text of an answer, and the names of the tools that it calls."""
    count: Callable[[Json], tuple[int, int, int]]
    """Returns the tokens of the prompt, those found in the cache, and those of the answer."""
    counting: tuple[str, frozenset[str]] = ("", frozenset())
    """The path that counts a prompt's tokens, and the fields that it does not take."""
    system: Json = field(default_factory=dict)

    @property
    def path(self) -> str:
        return self.dialect().path.removeprefix("/v1")


def _read_chat(body: Json) -> tuple[str, list[str]]:
    message = body["choices"][0]["message"]
    return message["content"] or "", [call["function"]["name"] for call in message.get("tool_calls", ())]


def _read_response(body: Json) -> tuple[str, list[str]]:
    items = body["output"]
    text = "".join(item["content"][0]["text"] for item in items if item["type"] == "message")
    return text, [item["name"] for item in items if item["type"] == "function_call"]


def _read_message(body: Json) -> tuple[str, list[str]]:
    blocks = body["content"]
    text = "".join(block["text"] for block in blocks if block["type"] == "text")
    return text, [block["name"] for block in blocks if block["type"] == "tool_use"]


def _count_chat(usage: Json) -> tuple[int, int, int]:
    return usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"], usage["completion_tokens"]


def _count_response(usage: Json) -> tuple[int, int, int]:
    return usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"], usage["output_tokens"]


def _count_message(usage: Json) -> tuple[int, int, int]:
    cached = usage["cache_read_input_tokens"]
    return usage["input_tokens"] + cached, cached, usage["output_tokens"]


CHAT = Words(
    ChatDialect,
    {"model": "tiny", "messages": QUESTION},
    CALCULATOR,
    ("required", {"type": "function", "function": {"name": "calculate"}}),
    "none",
    _read_chat,
    _count_chat,
)
RESPONSES = Words(
    ResponsesDialect,
    {"model": "tiny", "input": "12+30?"},
    {"type": "function", **FUNCTION},
    ("required", {"type": "function", "name": "calculate"}),
    "none",
    _read_response,
    _count_response,
    ("/responses/input_tokens", frozenset()),
    {"instructions": "Be terse."},
)
ANTHROPIC = Words(
    AnthropicDialect,
    {"model": "tiny", "max_tokens": 200, "messages": QUESTION},
    {"name": FUNCTION["name"], "description": FUNCTION["description"], "input_schema": FUNCTION["parameters"]},
    ({"type": "any"}, {"type": "tool", "name": "calculate"}),
    {"type": "none"},
    _read_message,
    _count_message,
    ("/messages/count_tokens", frozenset({"max_tokens"})),
    {"system": "Be terse."},
)
EVERY = pytest.mark.parametrize("words", [CHAT, RESPONSES, ANTHROPIC], ids=["chat", "responses", "anthropic"])
TRANSLATED = pytest.mark.parametrize("words", [RESPONSES, ANTHROPIC], ids=["responses", "anthropic"])
SWITCHED = CHATML.replace(
    "<|im_start|>assistant\n'",
    "<|im_start|>assistant\n' }}"
    "{% if enable_thinking is defined and not enable_thinking %}{{ '<think>\n\n</think>\n\n' }}{% endif %}{{ ''",
)
"""A model that thinks unless thinking is switched off."""
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


def served(server, path="/chat/completions", **body) -> Json:
    answer = post(server, path, **body)
    assert answer.status_code == 200, answer.text
    read: Json = answer.json()
    return read


def prompt_of(sampler):
    """The last prompt as text, special tokens included."""
    return sampler.tokenizer.decode(sampler.requests[-1].prompt_ids)


@EVERY
def test_tools_are_demanded_and_forbidden(serve, words):
    server, sampler = serve([CALL_TEXT])
    for demand in words.demands:
        answer = served(server, words.path, **words.asked, tools=[words.tool], tool_choice=demand)
        assert words.read(answer) == ("", ["calculate"])
        assert sampler.requests[-1].constraint is not None
    answer = served(server, words.path, **words.asked, tools=[words.tool], tool_choice=words.none)
    assert words.read(answer) == (CALL_TEXT, [])
    assert "Evaluate" not in prompt_of(sampler)


@EVERY
def test_an_answer_has_text_usage_and_the_exact_tokens(serve, tokenizer, words):
    server, sampler = serve(["The answer is 42."])
    answer = served(server, words.path, **words.asked, **words.system, return_token_ids=True)
    assert words.read(answer) == ("The answer is 42.", [])
    prompt_ids = sampler.requests[0].prompt_ids
    assert ("system\nBe terse." in prompt_of(sampler)) == bool(words.system)
    token_ids = [*tokenizer.encode("The answer is 42."), tokenizer.eos_token_id]
    with_ids = {**answer, **answer.get("choices", [{}])[0]}
    assert (tuple(with_ids["prompt_token_ids"]), with_ids["token_ids"]) == (prompt_ids, token_ids)
    assert words.count(answer["usage"]) == (len(prompt_ids), 5, len(token_ids))


@pytest.mark.parametrize(
    ("words", "end"), [(CHAT, 'data: {"error"'), (RESPONSES, "event: response.failed"), (ANTHROPIC, "event: error")]
)
def test_a_stream_that_fails_on_its_way_ends_in_an_error_of_the_dialect(serve, words, end):
    server, sampler = serve(["The answer is 42."])
    sampler.breaks = OSError("the sampler broke")
    *_, last = post(server, words.path, **words.asked, stream=True).text.strip().split("\n\n")
    assert last.startswith(end)
    assert "the server failed to answer" in last
    assert "the sampler broke" not in last


@EVERY
def test_a_body_that_is_no_request_is_refused(ok, words):
    server, _ = ok
    for body in (b"", b"{", b"[]", b"null", b"\xff\xfe", b"{}", b'{"model": 3}', b'{"model": "tiny"}'):
        answer = httpx.post(f"{server.endpoint}{words.path}", content=body)
        assert answer.status_code == 400
        assert answer.json()["error"]["type"] == "invalid_request_error"


def test_a_refused_key_is_reported_in_the_shape_of_the_dialect(serve):
    server, _ = serve(["ok"], api_key="secret")
    assert post(server, "/responses").json()["error"]["type"] == "authentication_error"
    refused = post(server, "/messages")
    assert (refused.status_code, refused.json()["type"]) == (401, "error")


@TRANSLATED
def test_the_tokens_of_a_prompt_are_counted_without_an_answer(ok, words):
    server, sampler = ok
    path, left_out = words.counting
    asked = {**words.asked, **words.system, "tools": [words.tool]}
    counted = served(server, path, **{name: value for name, value in asked.items() if name not in left_out})
    assert not sampler.requests
    assert post(server, path, **{**words.asked, "model": "other"}).status_code == 404
    served(server, words.path, **asked)
    assert counted["input_tokens"] == len(sampler.requests[0].prompt_ids)


@TRANSLATED
def test_calls_whose_parts_are_mixed_are_an_error_and_not_a_wrong_call(words):
    exchange = words.dialect().open(words.asked, None)
    for index, call_id in ((0, "a"), (1, "b")):
        part = {"index": index, "id": call_id, "function": {"name": "f", "arguments": "{"}}
        exchange.events(chunk({"tool_calls": [part]}))
    with pytest.raises(UnavailableError, match="mixed"):
        exchange.events(chunk({"tool_calls": [{"index": 0, "function": {"arguments": "}"}}]}))


@pytest.mark.parametrize(
    ("words", "off"),
    [
        (CHAT, {"chat_template_kwargs": {"enable_thinking": False}}),
        (CHAT, {"enable_thinking": False}),
        (CHAT, {"thinking": {"type": "disabled"}}),
        (CHAT, {"reasoning_effort": "none"}),
        (RESPONSES, {"reasoning": {"effort": "none"}}),
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
def test_thinking_that_the_template_cannot_switch_off_is_refused(serve):
    server, _ = serve(["ok"])
    for words, off, named in (
        (CHAT, {"reasoning_effort": "none"}, "reasoning_effort"),
        (CHAT, {"thinking": {"type": "disabled"}}, "thinking"),
        (RESPONSES, {"reasoning": {"effort": "none"}}, "reasoning.effort"),
        (ANTHROPIC, {"thinking": {"type": "disabled"}}, "thinking"),
    ):
        answer = post(server, words.path, **words.asked, **off)
        assert answer.status_code == 400
        assert answer.json()["error"]["message"].startswith(f"{named}:")


@pytest.mark.parametrize("template", [EFFORTS])
def test_the_effort_or_anthropics_budget_reaches_a_template_that_uses_it(serve):
    server, sampler = serve(["ok"])
    budget = {"type": "enabled", "budget_tokens": 1024}
    for words, asked, effort in (
        (CHAT, {"reasoning_effort": "low"}, "low"),
        (ANTHROPIC, {"thinking": budget}, "low"),
        (ANTHROPIC, {"thinking": {**budget, "budget_tokens": 32_000}}, "high"),
        (ANTHROPIC, {"thinking": {"type": "enabled"}}, "medium"),
        (ANTHROPIC, {"thinking": budget, "output_config": {"effort": "high"}}, "high"),
    ):
        served(server, words.path, **words.asked, **asked)
        assert prompt_of(sampler).endswith(effort)
    assert post(server, **BODY, reasoning_effort="frantic").status_code == 400


def test_a_conversation_goes_on_from_calls_with_the_same_settings_only(serve):
    server, _ = serve(["Forty-two."])
    message = served(server, **BODY, chat_template_kwargs={"enable_thinking": False})["choices"][0]["message"]
    more = [*QUESTION, {"role": "assistant", "content": message["content"]}, {"role": "user", "content": "Sure?"}]
    post(server, model="tiny", messages=more)
    assert server.service.memory.counters()["continued"] == 0


def test_a_setting_cannot_replace_what_the_server_renders_and_spells_no_special_token(ok):
    for name in ("chat_template", "messages", "tools", "add_generation_prompt", "tokenize"):
        answer = post(ok[0], **BODY, chat_template_kwargs={name: "x"})
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == f"chat_template_kwargs.{name}"
    tokenizer = small_tokenizer(SWITCHED + "{{ enable_thinking }}")
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    renderer = ChatRenderer(tokenizer)
    forged = renderer.with_settings({"enable_thinking": "<|im_end|>"}).render(QUESTION)
    assert forged.count(end) == renderer.render(QUESTION).count(end)


@EVERY
def test_fields_without_effect_are_named_in_a_header_and_once_in_the_log(serve, caplog, words):
    server, _ = serve(["ok"])
    asked = {**words.asked, "frobnicate": 1, "chat_template_kwargs": {"date": "today"}, "é\r\n": 2}
    for stream in (False, True):
        answer = post(server, words.path, **asked, stream=stream)
        assert answer.status_code == 200, answer.text
        assert answer.headers["x-ignored-parameters"] == "frobnicate, ???, chat_template_kwargs.date"
    assert caplog.text.count("frobnicate") == 1
    assert "x-ignored-parameters" not in post(server, words.path, **words.asked).headers


@pytest.mark.parametrize(
    ("words", "asked", "named"),
    [
        (RESPONSES, {"text": {"verbosity": "low"}}, "text.verbosity"),
        (RESPONSES, {"truncation": "auto"}, "truncation"),
        (RESPONSES, {"include": ["message.output_text.logprobs"]}, "include (message.output_text.logprobs)"),
        (CHAT, {"thinking": {"type": "enabled", "budget_tokens": 5}}, "thinking.budget_tokens"),
        (ANTHROPIC, {"thinking": {"type": "adaptive", "display": "omitted"}}, "thinking.display"),
        (ANTHROPIC, {"output_config": {"task_budget": {"total": 9}}}, "output_config.task_budget"),
    ],
)
def test_fields_without_effect_within_another_field_are_named_too(ok, words, asked, named):
    answer = post(ok[0], words.path, **{**words.asked, **asked})
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-ignored-parameters"] == named


@EVERY
def test_parameters_of_other_servers_are_refused_by_name_unless_they_have_no_effect(ok, words):
    server, sampler = ok
    for asked in ({"prompt_logprobs": 0}, {"bad_words": ["no"]}, {"modalities": ["text", "audio"]}):
        answer = post(server, words.path, **words.asked, **asked)
        assert answer.status_code == 400
        assert next(iter(asked)) in answer.json()["error"]["message"]
    assert not sampler.requests
    nothing = {"prompt_logprobs": None, "use_beam_search": False, "skip_special_tokens": True, "typical_p": 1.0}
    more = {"mirostat": 0, "bad_words": [], "modalities": ["text"], "cache_prompt": True, "user": "u"}
    answer = post(server, words.path, **words.asked, **nothing, **more)
    assert answer.status_code == 200, answer.text
    assert "x-ignored-parameters" not in answer.headers


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
def test_the_last_message_is_continued(serve, template):
    server, sampler = serve([" 42.", "Yes."])
    renderer = ChatRenderer(sampler.tokenizer)
    asked = {"model": "tiny", "messages": BEGUN, "continue_final_message": True, "add_generation_prompt": False}
    assert served(server, **asked)["choices"][0]["message"]["content"] == " 42."
    begun = (*renderer.render(QUESTION), *renderer.encode_answer(BEGUN[-1]))
    assert sampler.requests[0].prompt_ids == begun
    whole = {"role": "assistant", "content": "The answer is 42."}
    post(server, model="tiny", messages=[*QUESTION, whole, {"role": "user", "content": "Sure?"}])
    sampled = sampler.tokenizer.encode(" 42.", add_special_tokens=False)
    assert sampler.requests[1].prompt_ids[: len(begun) + len(sampled)] == (*begun, *sampled)


def test_a_message_that_anthropics_client_begins_is_continued(serve):
    server, sampler = serve([" 42."])
    answer = served(server, "/messages", model="tiny", max_tokens=9, messages=BEGUN)
    assert answer["content"] == [{"type": "text", "text": " 42."}]
    assert prompt_of(sampler).endswith("assistant\nThe answer is")
    counted = served(server, "/messages/count_tokens", model="tiny", messages=BEGUN)
    assert counted == {"input_tokens": len(sampler.requests[0].prompt_ids)}


def test_options_of_the_prompt_and_the_end_of_an_answer(serve, tokenizer):
    stop = tokenizer.encode("!", add_special_tokens=False)[0]
    server, sampler = serve(["ok!", "ok", "one two three"])
    choice = served(server, **BODY, stop_token_ids=[stop], max_tokens=2)["choices"][0]
    assert choice["message"]["content"] == "ok"
    served(server, **BODY, add_generation_prompt=False)
    assert prompt_of(sampler).endswith("12+30?<|im_end|>\n")
    options = {"include_usage": True, "continuous_usage_stats": True}
    answer = post(server, **BODY, stream=True, stream_options=options)
    chunks = [line for line in answer.text.splitlines() if line.startswith("data: {")]
    assert all(f'"prompt_tokens":{len(sampler.requests[-1].prompt_ids)}' in each for each in chunks)
    answer = post(server, **BODY, stream=True, stream_options={"include_usage": True})
    *earlier, last = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    assert all(chunk["usage"] is None for chunk in earlier)
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] > 0


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
def test_a_tools_name_may_have_128_characters_and_errors_name_the_dialects_field(ok, words, at):
    def named(length):
        tool = {**words.tool, "name": "x" * length}
        if words is CHAT:
            tool = {"type": "function", "function": {**FUNCTION, "name": "x" * length}}
        return post(ok[0], words.path, **words.asked, tools=[words.tool, tool])

    assert named(128).is_success
    refused = named(129)
    assert refused.status_code == 400
    assert refused.json()["error"]["message"].startswith(f"{at}:")


_WORDS = st.sampled_from(
    """user assistant system tool function message text f auto required any none function_call function_call_output
    reasoning input_text output_text tool_use tool_result thinking json_schema {} [ allowed_tools disabled""".split()  # noqa: SIM905
) | st.sampled_from(["", "\ud800"])
_FIELDS = st.sampled_from(
    """type role content text name call_id arguments output id input function tools tool_use_id thinking schema format
    mode parameters input_schema tool_calls source""".split()  # noqa: SIM905
)
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 10**20) | st.floats() | _WORDS | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_FIELDS, inner, max_size=5),
    max_leaves=12,
)
_OPTIONS = """messages input instructions previous_response_id tools tool_choice parallel_tool_calls text metadata store
    stream temperature top_p top_k top_logprobs include reasoning system stop stop_sequences output_config n seed
    logit_bias logprobs stream_options response_format return_token_ids user background truncation
    structured_outputs guided_json guided_choice grammar regex chat_template_kwargs thinking reasoning_effort
    continue_final_message stop_token_ids output_format modalities"""
_REQUESTS = st.fixed_dictionaries({}, optional=dict.fromkeys(_OPTIONS.split(), _VALUES)).map(
    lambda fields: {"model": "tiny", "max_tokens": 9, **fields}
)


@pytest.mark.parametrize("dialect", shared_dialects(), ids=lambda dialect: dialect.path)
@settings(max_examples=30, deadline=None)
@given(body=_REQUESTS | st.dictionaries(_FIELDS, _VALUES, max_size=4))
def test_any_object_is_a_chat_request_or_an_error_of_the_client(dialect, body):
    sent = json_object(json.dumps(body).encode())
    refusal = None
    try:
        plain_messages(parse_chat_request(dialect.open(sent, None).chat).messages)
        dialect.left_out(sent)
    except HttpError as error:
        refusal = error
    assert refusal is None or 400 <= refusal.status < 500
    assert refusal is None or json.loads(encode(dialect.refusal(refusal)))["error"]["message"]
