"""What every dialect does alike: the same behaviour, asked for in the words of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from mini_agentic_rl.gateway.dialects import AnthropicDialect, ChatDialect, Dialect, ResponsesDialect
from mini_agentic_rl.gateway.errors import UnavailableError

from ..samples import CALCULATOR, CALL_TEXT
from .chunks import chunk

Json = dict[str, Any]

FUNCTION: Json = CALCULATOR["function"]  # type: ignore[assignment]  # the values of the tool are of several types
ANTHROPIC_TOOL = {
    "name": FUNCTION["name"],
    "description": FUNCTION["description"],
    "input_schema": FUNCTION["parameters"],
}
QUESTION = [{"role": "user", "content": "12+30?"}]


@dataclass(frozen=True)
class Words:
    """How a dialect says what the tests ask for, and where it answers."""

    dialect: Callable[[], Dialect]
    asked: Json
    tool: Json
    demands: tuple[Any, ...]
    """Values of `tool_choice` that demand a call of the calculator."""
    none: Any
    """The value of `tool_choice` that forbids calls."""
    said: Callable[[Json], tuple[str, list[str]]]
    """Returns the text of an answer, and the names of the tools that it calls."""
    counting: tuple[str, frozenset[str]] = ("", frozenset())
    """The path that counts a prompt's tokens, and the fields that it does not take."""
    system: Json = field(default_factory=dict)

    @property
    def path(self) -> str:
        return self.dialect().path.removeprefix("/v1")


def _chat_said(body: Json) -> tuple[str, list[str]]:
    message = body["choices"][0]["message"]
    return message["content"] or "", [call["function"]["name"] for call in message.get("tool_calls", ())]


def _responses_said(body: Json) -> tuple[str, list[str]]:
    items = body["output"]
    text = "".join(item["content"][0]["text"] for item in items if item["type"] == "message")
    return text, [item["name"] for item in items if item["type"] == "function_call"]


def _anthropic_said(body: Json) -> tuple[str, list[str]]:
    blocks = body["content"]
    text = "".join(block["text"] for block in blocks if block["type"] == "text")
    return text, [block["name"] for block in blocks if block["type"] == "tool_use"]


CHAT = Words(
    ChatDialect,
    {"model": "tiny", "messages": QUESTION},
    dict(CALCULATOR),
    ("required", {"type": "function", "function": {"name": "calculate"}}),
    "none",
    _chat_said,
)
RESPONSES = Words(
    ResponsesDialect,
    {"model": "tiny", "input": "12+30?"},
    {"type": "function", **FUNCTION},
    ("required", {"type": "function", "name": "calculate"}),
    "none",
    _responses_said,
    ("/responses/input_tokens", frozenset()),
    {"instructions": "Be terse."},
)
ANTHROPIC = Words(
    AnthropicDialect,
    {"model": "tiny", "max_tokens": 200, "messages": QUESTION},
    ANTHROPIC_TOOL,
    ({"type": "any"}, {"type": "tool", "name": "calculate"}),
    {"type": "none"},
    _anthropic_said,
    ("/messages/count_tokens", frozenset({"max_tokens"})),
    {"system": "Be terse."},
)
EVERY = pytest.mark.parametrize("words", [CHAT, RESPONSES, ANTHROPIC], ids=["chat", "responses", "anthropic"])
TRANSLATED = pytest.mark.parametrize("words", [RESPONSES, ANTHROPIC], ids=["responses", "anthropic"])


def post(server, path: str, **body) -> Json:
    answer = httpx.post(f"{server.endpoint}{path}", json=body)
    assert answer.status_code == 200, answer.text
    read: Json = answer.json()
    return read


@EVERY
@pytest.mark.parametrize("index", [0, 1])
def test_a_demanded_call_is_demanded_of_the_model(serve, words, index):
    server, sampler = serve([CALL_TEXT])
    answer = post(server, words.path, **words.asked, tools=[words.tool], tool_choice=words.demands[index])
    assert words.said(answer) == ("", ["calculate"])
    assert sampler.requests[0].constraint is not None


@EVERY
def test_tool_choice_none_neither_offers_nor_reads_tools(serve, tokenizer, words):
    server, sampler = serve([CALL_TEXT])
    answer = post(server, words.path, **words.asked, tools=[words.tool], tool_choice=words.none)
    assert words.said(answer) == (CALL_TEXT, [])
    assert "Evaluate" not in tokenizer.decode(sampler.requests[0].prompt_ids)


@EVERY
@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b"\xff\xfe", b"{}", b'{"model": 3}', b'{"model": "tiny"}'])
def test_a_body_that_is_no_request_is_refused(ok, words, body):
    server, _ = ok
    answer = httpx.post(f"{server.endpoint}{words.path}", content=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"


@TRANSLATED
def test_the_tokens_of_a_prompt_are_counted_without_an_answer(ok, words):
    server, sampler = ok
    path, left_out = words.counting
    asked = {**words.asked, **words.system, "tools": [words.tool]}
    counted = post(server, path, **{name: value for name, value in asked.items() if name not in left_out})
    assert not sampler.requests
    unknown = httpx.post(f"{server.endpoint}{path}", json={**words.asked, "model": "other"})
    assert unknown.status_code == 404
    post(server, words.path, **asked)
    assert counted["input_tokens"] == len(sampler.requests[0].prompt_ids)


@TRANSLATED
def test_calls_whose_parts_are_mixed_are_an_error_and_not_a_wrong_call(words):
    exchange = words.dialect().open(words.asked, None)
    for index, call_id in ((0, "a"), (1, "b")):
        part = {"index": index, "id": call_id, "function": {"name": "f", "arguments": "{"}}
        exchange.events(chunk({"tool_calls": [part]}))
    with pytest.raises(UnavailableError, match="mixed"):
        exchange.events(chunk({"tool_calls": [{"index": 0, "function": {"arguments": "}"}}]}))
