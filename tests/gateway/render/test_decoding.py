"""An answer as it grows: characters of several tokens, stop strings, thought and calls, ids and log-probabilities."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mini_agentic_rl.gateway.completion.choice import Choice
from mini_agentic_rl.gateway.render.decoding import (
    AnswerReader,
    Decoder,
    Detokenizer,
    ThinkTags,
    Thought,
    ThoughtScanner,
)
from mini_agentic_rl.gateway.render.renderer import ChatRenderer
from mini_agentic_rl.gateway.tool_formats import HERMES, ToolCall, partial_end
from mini_agentic_rl.tokens import TokenDelta

from ..samples import CALCULATOR, CALL_TEXT, cut
from ..small_tokenizer import THINKING, THINKING_BEGUN, sentencepiece_tokenizer, small_tokenizer


def feed(choice, ids, size=1):
    parts = []
    for start in range(0, len(ids), size):
        part = tuple(ids[start : start + size])
        last = start + size >= len(ids)
        logprobs = tuple(-float(start + offset) for offset in range(len(part)))
        parts += choice.take(TokenDelta(part, logprobs, finish_reason="stop" if last else None, version=4))
        if choice.finish_reason is not None:
            break
    return parts


@pytest.mark.parametrize("make", [small_tokenizer, sentencepiece_tokenizer])
def test_pieces_are_whole_characters_and_join_to_the_text(make):
    tokenizer = make()
    for text in ("naïve 🙂🙂 Ünïcödé 漢字", "plain", "  lead", "tail\n\n"):
        for size in (1, 3):
            detokenizer = Detokenizer(Decoder(tokenizer))
            ids = tokenizer.encode(text, add_special_tokens=False)
            parts = [detokenizer.add(*ids[start : start + size]) for start in range(0, len(ids), size)]
            parts.append(detokenizer.finish())
            assert "".join(parts) == text
            assert not any("\ufffd" in part for part in parts)


def test_half_a_character_at_the_end_comes_out_as_a_replacement(tokenizer):
    detokenizer = Detokenizer(Decoder(tokenizer))
    ids = tokenizer.encode("a🙂", add_special_tokens=False)[:-1]
    assert "".join(detokenizer.add(token_id) for token_id in ids) == "a"
    assert set(detokenizer.finish()) == {"\ufffd"}


@pytest.mark.parametrize("size", [1, 3, 100])
@pytest.mark.parametrize("streamed", [False, True])
def test_a_stop_string_cuts_text_ids_and_logprobs_together(tokenizer, size, streamed):
    ids = tokenizer.encode("The answer is 42. END of it", add_special_tokens=False)
    choice = Choice(0, Decoder(tokenizer), end_ids=[tokenizer.eos_token_id], stops=["END", "never"], streamed=streamed)
    feed(choice, [*ids, tokenizer.eos_token_id], size)
    assert choice.content == "The answer is 42. "
    assert choice.finish_reason == "stop"
    assert "END" in tokenizer.decode(choice.token_ids)
    assert "END" not in tokenizer.decode(choice.token_ids[:-1])
    assert choice.logprobs == [-float(position) for position in range(len(choice.token_ids))]


def test_marks_of_forced_tokens_are_cut_with_them(tokenizer):
    ids = tokenizer.encode("abc END def", add_special_tokens=False)
    choice = Choice(0, Decoder(tokenizer), stops=["END"])
    choice.take(TokenDelta(tuple(ids[:2]), (-1.0, -1.0)))
    rest = ids[2:]
    choice.take(TokenDelta(tuple(rest), (-1.0,) * len(rest), forced=(True, False) + (True,) * (len(rest) - 2)))
    assert choice.finish_reason == "stop"
    assert choice.forced == [2, *range(4, len(choice.token_ids))]
    assert len(choice.token_ids) < len(ids)


def test_what_may_become_a_stop_string_is_held_back(tokenizer):
    choice = Choice(0, Decoder(tokenizer), stops=["\n\nUser"], streamed=True)
    ids = tokenizer.encode("one\n\nUsed", add_special_tokens=False)
    shown = ""
    for position, token_id in enumerate(ids):
        shown += "".join(choice.take(TokenDelta((token_id,), (0.0,))))
        assert "\n\nUser".startswith(tokenizer.decode(ids[: position + 1])[len(shown) :])
    shown += "".join(choice.finish("stop"))
    assert shown == "one\n\nUsed"


@given(st.text("ab", min_size=1, max_size=6), st.text("abc", max_size=20))
def test_the_held_text_is_the_longest_end_that_begins_a_stop_string(stop, text):
    assert partial_end(text, stop) == max(size for size in range(len(stop)) if text.endswith(stop[:size]))


def test_the_earliest_of_several_stop_strings_wins(tokenizer):
    choice = Choice(0, Decoder(tokenizer), stops=["cd", "abcdef", "bc"])
    feed(choice, tokenizer.encode("xabcdefg", add_special_tokens=False), 100)
    assert choice.content == "xa"


@pytest.mark.parametrize("streamed", [False, True])
def test_a_call_that_begins_with_a_special_token_is_read(streamed):
    tokenizer = small_tokenizer(special=["[TOOL_CALLS]", "[OTHER]"])
    renderer = ChatRenderer(tokenizer, tool_format="mistral")
    ids = renderer.encode('Hm.[OTHER][TOOL_CALLS][{"name": "f", "arguments": {}}]')
    for calls in (True, False):
        choice = Choice(
            0, renderer.decoder(calls), reader=renderer.reader([CALCULATOR] if calls else []), streamed=streamed
        )
        feed(choice, ids)
        assert [call.name for call in choice.calls] == (["f"] if calls else [])
        assert choice.content == ("Hm." if calls else 'Hm.[{"name": "f", "arguments": {}}]')
        assert choice.token_ids == ids


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
    assert read_in_pieces(cut(text, cuts), begun) == read_in_pieces([text], begun)


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
