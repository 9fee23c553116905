"""A chat with the real OpenAI SDK, against a transport that plays a script."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import httpx
import pytest
from openai import OpenAI
from rich.console import Console

from mini_agentic_rl.commands.chat import Conversation, ReplyText, talk
from mini_agentic_rl.datasets import ChatTools
from mini_agentic_rl.recipes.math import SYSTEM_PROMPT, TOOLS, use_tool

CALL = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "calculator", "arguments": '{"expres'}}
REST = {"index": 0, "function": {"arguments": 'sion": "12*12"}'}}


class Endpoint:
    """Answers each request with the next deltas of its script and keeps the requests."""

    def __init__(self) -> None:
        self.script: list[list[dict]] = []
        self.requests: list[dict] = []

    def answer(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(json.loads(request.content))
        if not self.script:
            return httpx.Response(400, json={"error": {"message": "the script is over"}})
        lines = ["data: [DONE]"]
        for delta in reversed(self.script.pop(0)):
            choice = {"index": 0, "delta": delta, "finish_reason": None}
            chunk = {"id": "x", "object": "chat.completion.chunk", "created": 0, "model": "m", "choices": [choice]}
            lines.insert(0, f"data: {json.dumps(chunk)}")
        return httpx.Response(200, text="\n\n".join(lines) + "\n\n", headers={"content-type": "text/event-stream"})


@pytest.fixture
def endpoint():
    return Endpoint()


@pytest.fixture
def conversation(endpoint):
    http = httpx.Client(transport=httpx.MockTransport(endpoint.answer))
    with OpenAI(base_url="http://endpoint/v1", api_key="none", max_retries=0, http_client=http) as client:
        yield Conversation(
            client=client,
            model="m",
            console=Console(file=io.StringIO(), width=100),
            offered=ChatTools(SYSTEM_PROMPT, TOOLS, use_tool),
            max_turns=3,
            sampling={"temperature": 0.0, "max_tokens": 64},
        )


def _talk(conversation, *lines):
    waiting = iter(lines)

    def read():
        try:
            return next(waiting)
        except StopIteration:
            raise EOFError from None

    talk(conversation, read)
    return conversation.console.file.getvalue()


def test_a_tool_is_called_shown_and_answered(conversation, endpoint):
    endpoint.script = [
        [{"content": "I multiply."}, {"tool_calls": [CALL]}, {"tool_calls": [REST]}],
        [{"content": "144"}],
    ]
    assert conversation.say("12 times 12?") == "144"
    assert [message["role"] for message in endpoint.requests[1]["messages"]] == ["system", "user", "assistant", "tool"]
    assert endpoint.requests[1]["messages"][-1] == {"role": "tool", "tool_call_id": "call_1", "content": "144"}
    assert endpoint.requests[0]["tools"] == TOOLS
    assert endpoint.requests[0]["max_tokens"] == 64
    shown = conversation.console.file.getvalue()
    assert 'calculator {"expression": "12*12"}' in shown
    assert "← 144" in shown


def test_a_conversation_goes_on_until_the_input_ends_and_commands_are_not_sent_to_the_model(conversation, endpoint):
    endpoint.script = [[{"content": text}] for text in ("one", "[bold]two[/bold]", "three")]
    shown = _talk(conversation, "first", "  ", "second", "/new", "/help", "/hlep", "third", "/quit", "fourth")
    assert "[bold]two[/bold]" in shown
    contents = [[message["content"] for message in request["messages"]] for request in endpoint.requests]
    assert contents[1:] == [[SYSTEM_PROMPT, "first", "one", "second"], [SYSTEM_PROMPT, "third"]]
    assert shown.count("/new starts over") == 2
    assert "/hlep is no command" in shown
    for word in ("exit", "/exit"):
        _talk(conversation, word, "never")
    assert len(endpoint.requests) == 3


def test_a_model_that_only_calls_tools_is_stopped(conversation, endpoint):
    endpoint.script = [[{"tool_calls": [CALL]}]] * 5
    assert conversation.say("loop") == ""
    assert len(endpoint.requests) == 3
    assert "--max-turns 3" in conversation.console.file.getvalue()


def test_a_refused_call_is_shown_and_changes_nothing(conversation, endpoint):
    endpoint.script = []
    shown = _talk(conversation, "hello")
    assert "error: Error code: 400" in shown
    assert conversation.messages == []


def test_ctrl_c_stops_a_reply_and_not_the_chat(conversation, endpoint):
    endpoint.script = [[{"tool_calls": [CALL]}], [{"content": "fine"}]]

    def interrupted(name, arguments):
        raise KeyboardInterrupt

    conversation.offered = replace(conversation.offered, call=interrupted)
    shown = _talk(conversation, "first", "second")
    assert "(stopped)" in shown
    assert "fine" in shown
    assert [message["content"] for message in endpoint.requests[1]["messages"]] == [SYSTEM_PROMPT, "second"]


@pytest.mark.parametrize("size", [1, 1000])
@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Answer: 95018\n</tool_response>", "Answer: 95018"),
        ("<|im_start|>assistant\nHi [/INST]there</s>\n", "assistant\nHi there"),
        ("a < b, x[0] > <b>c</b> [OK", "a < b, x[0] > <b>c</b> [OK"),
        ("I try.\n<tool_call>\n{}\n</tool_call>", "I try.\n\n{}"),
        ("Answer: 5\n</tool_resp", "Answer: 5"),
        ("Is 4 <", "Is 4 <"),
        ("  \n", ""),
    ],
)
def test_words_are_shown_and_tags_are_not(text, shown, size):
    reply = ReplyText()
    pieces = [reply.feed(text[start : start + size]) for start in range(0, len(text), size)]
    assert "".join(pieces) + reply.finish() == shown
