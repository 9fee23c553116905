"""Thoughts told apart from the answers that follow them."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mini_agentic_rl.gateway.render.decoding import AnswerReader, ThinkTags, Thought, ThoughtScanner
from mini_agentic_rl.gateway.render.renderer import ChatRenderer
from mini_agentic_rl.gateway.tool_formats import HERMES, ToolCall

from ..samples import CALCULATOR, CALL_TEXT
from ..small_tokenizer import THINKING, THINKING_BEGUN, small_tokenizer

TAGS = ThinkTags("<think>", "</think>")
FRAGMENTS = ["<think>", "</think>", "<thi", "nk>", "</", " ", "\n\n", "hm", "Yes.", CALL_TEXT, "<tool_call>", "<"]


def read(parts):
    """Thought, content and calls."""
    thought = "".join(part.text for part in parts if isinstance(part, Thought))
    content = "".join(part for part in parts if isinstance(part, str))
    return thought, content, [part.name for part in parts if isinstance(part, ToolCall)]


def reader(begun=False):
    return AnswerReader(ThoughtScanner(TAGS, begun), HERMES.scanner())


def read_in_pieces(parts, begun=False):
    answer = reader(begun)
    parts = [part for part in parts for part in answer.feed(part)]
    return *read(parts + answer.finish()), answer.thought_found


@pytest.mark.parametrize(
    ("text", "begun", "expected"),
    [
        ("<think>\nhm\n</think>\n\nYes.", False, ("hm", "Yes.", [], True)),
        ("\n<think>a\n b</think>", False, ("a\n b", "", [], True)),
        ("<think></think>Yes.", False, ("", "Yes.", [], True)),
        (f"<think>{CALL_TEXT}</think>{CALL_TEXT}", False, (CALL_TEXT, "", ["calculate"], True)),
        ("Yes. <think>no</think>", False, ("", "Yes. <think>no</think>", [], False)),
        ("  Yes.", False, ("", "  Yes.", [], False)),
        ("hm</think>Yes.", False, ("", "hm</think>Yes.", [], False)),
        ("<think>cut off", False, ("cut off", "", [], True)),
        ("<thi", False, ("", "<thi", [], False)),
        ("hm\n</think>\n\nYes.", True, ("hm", "Yes.", [], True)),
        ("<think>hm</think>Yes.", True, ("hm", "Yes.", [], True)),
        ("never closed </thi", True, ("never closed </thi", "", [], True)),
        ("", True, ("", "", [], True)),
    ],
)
def test_a_thought_is_what_an_answer_begins_with_between_the_tags(text, begun, expected):
    assert read_in_pieces([text], begun) == expected
    assert read_in_pieces(text, begun) == expected


@settings(deadline=None)
@given(
    fragments=st.lists(st.sampled_from(FRAGMENTS), max_size=8), cuts=st.lists(st.integers(1, 9)), begun=st.booleans()
)
def test_pieces_do_not_depend_on_how_the_text_arrives(fragments, cuts, begun):
    text = "".join(fragments)
    parts, at = [], 0
    for size in cuts:
        parts.append(text[at : at + size])
        at += size
    assert read_in_pieces([*parts, text[at:]], begun) == read_in_pieces([text], begun)


@pytest.mark.parametrize("begun", [False, True])
def test_adversarial_text_costs_time_in_proportion_to_its_length(begun):
    for part in (" ", "<", "</think", "</think>"):
        text = part * (60_000 // len(part))
        started = time.process_time()
        read_in_pieces([text[at : at + 3] for at in range(0, len(text), 3)], begun)
        assert time.process_time() - started < 3.0


def test_think_tags_are_found_in_template_or_vocabulary():
    assert ChatRenderer(small_tokenizer(THINKING)).thinking == "fork"
    assert ChatRenderer(small_tokenizer(added=["<think>", "</think>"])).thinking == "fork"
    assert ChatRenderer(small_tokenizer()).thinking == "off"
    assert ChatRenderer(small_tokenizer(), thinking="keep").thinking == "keep"


def test_a_forced_call_closes_the_thought_that_the_prompt_opens():
    renderer = ChatRenderer(small_tokenizer(THINKING_BEGUN))
    prefix = renderer.forced_prefix("calculate")
    answer = renderer.reader([CALCULATOR])
    parts = answer.feed(prefix) + answer.feed(' {"expression": "12+30"}}\n</tool_call>') + answer.finish()
    assert read(parts) == ("", "", ["calculate"])
