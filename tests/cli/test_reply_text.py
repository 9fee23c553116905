"""A person who chats reads words, and never the tags that a model has learnt to write around them."""

from __future__ import annotations

import io

import pytest
from openai import OpenAI
from rich.console import Console

from gateway.scripted import ScriptedSampler
from gateway.small_tokenizer import small_tokenizer
from mini_agentic_rl.commands.chat import Conversation, ReplyText, Said
from mini_agentic_rl.gateway.http.server import MiniLLMServer
from mini_agentic_rl.recipes.math import TOOLS

BROKEN = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "12*"\n</tool_call>'


def _read(text, size):
    reader = ReplyText()
    parts = [part for start in range(0, len(text), size) for part in reader.feed(text[start : start + size])]
    joined: list[Said] = []
    for part in parts + reader.finish():
        if joined and not part.is_aside and not joined[-1].is_aside:
            joined[-1] = Said(joined[-1].text + part.text)
        else:
            joined.append(part)
    return joined


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Answer: 95018\n</tool_response>", [Said("Answer: 95018")]),
        ("<|im_start|>assistant\nHi [/INST] there</s>\n", [Said("assistant\nHi there")]),
        ("</tool_call>\n\nOne\n</tool_call>\n\nTwo", [Said("One\nTwo")]),
        ("a < b, x[0] > <b>c</b> [OK", [Said("a < b, x[0] > <b>c</b> [OK")]),
        (
            f"I try.\n{BROKEN}\nDone",
            [
                Said("I try."),
                Said(
                    '→ a tool call that cannot be read: {"name": "calculator", "arguments": {"expression": "12*"', True
                ),
                Said("Done"),
            ],
        ),
        ("<tool_response>\n144\n</tool_response>", [Said("← a result that the model made up: 144", True)]),
        ("<tool_call>\n{", [Said("→ a tool call that cannot be read: {", True)]),
        ("Answer: 5\n</tool_resp", [Said("Answer: 5")]),
        ("Is 4 <", [Said("Is 4 <")]),
        ("  \n", []),
    ],
)
def test_words_are_shown_and_tags_are_not(text, shown, size):
    assert _read(text, size) == shown


def test_a_call_that_the_endpoint_cannot_read_is_a_line_and_the_models_words_stay_in_the_conversation():
    tokenizer = small_tokenizer()
    says = [f"{BROKEN}\n</tool_response>", "Answer: 144\n</tool_response>"]
    with (
        MiniLLMServer(ScriptedSampler(tokenizer, says), tokenizer, model_name="tiny", tool_format="hermes") as server,
        OpenAI(base_url=server.endpoint, api_key="none", max_retries=0) as client,
    ):
        console = Console(file=io.StringIO(), width=200)
        conversation = Conversation(client=client, model="tiny", console=console, tools=TOOLS)
        assert conversation.say("12 times 12?") == ""
        assert conversation.say("And in words?") == "Answer: 144"
    shown = console.file.getvalue()
    assert shown.splitlines() == [
        '  → a tool call that cannot be read: {"name": "calculator", "arguments": {"expression": "12*"',
        "Answer: 144",
    ]
    assert "</tool_call>" in conversation.messages[1]["content"]
