"""Our own readers of text that somebody else wrote: answers, tool calls, thoughts.

None raises what its caller does not expect, and none takes time by the square of a text's length.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

from mini_agentic_rl.gateway.render.decoding import KNOWN_TAGS, AnswerReader, ThoughtScanner
from mini_agentic_rl.gateway.tool_formats import FORMATS, split_tool_calls
from mini_agentic_rl.rewards.extract import extract_answer, extract_option
from mini_agentic_rl.rewards.format import has_answer_line, has_boxed_answer, has_thinking
from mini_agentic_rl.rewards.math import is_correct, normalise_answer, same_answer
from mini_agentic_rl.rewards.values import unit_of

from .conftest import Attack

PIECES = [
    "answer: ", "answer: 1\n", "#### 1\n", "####", "\\boxed{", "\\boxed{1}", "\\boxed 1", "{", "}", "(", ")", "[", "]",
    "1", "1,", "1,234", "1 ", "1 234 ", "\\frac{1}{2}", "\\text{", "** ", "**a", "__a", "_", "*", "$", "$1", "-", "−",
    "1/", "%", "1e9", "1e999", " and ", "±", "about ", "=", "a=", ".", "1.", "..", "option ", "(A)", "A) ", "\n", " ",
    "\t", "½", "∞", "km", " km/", "square ", "^2", "²", "approx. ", "thousand ", "\u00a0", "\x00", "\ud800", "🙂", "é",
    "<think>", "</think>", "[THINK]", "<tool_call>", "</tool_call>", "```", "```json\n", "[TOOL_CALLS]", "[ARGS]",
    "[CALL_ID]", "<|python_tag|>", "<|tool_call|>", '{"name":', '{"name": "a", "arguments": {}}', '[{"name":', "\n[a(",
    "[a(b=1)]", "[a(b='", '"', "'", "\\", "'''", '"""', "\n{", "\n[", "[[", '{"a":', "; ", ":", "x" * 600, "9" * 5000,
]  # fmt: skip
TAILS = [
    ("", ""),
    ("<tool_call>", "</tool_call>"),
    ("[TOOL_CALLS]", ""),
    ("\n[a(b=", ")]"),
    ('{"name": "a", "arguments": ', "}"),
]
LENGTH = 60_000
LIMIT_S = 10.0
"""Seconds for `LENGTH` characters: ten times what the slowest reader needs, a tenth of what a square one would."""

ANSWERS: list[Callable[[str], Any]] = [
    extract_answer,
    lambda text: extract_answer(text, units=True),
    extract_option,
    normalise_answer,
    has_answer_line,
    has_boxed_answer,
    has_thinking,
    unit_of,
    lambda text: is_correct(text, "42"),
    lambda text: same_answer(text, 42),
]


def long_texts(attack: Attack, whole: int) -> list[str]:
    """Return texts of `LENGTH` characters: one piece or two again and again, within what opens a call or not."""
    patterns = [*PIECES, *(first + second for first, second in itertools.permutations(PIECES, 2))]
    random.Random(17).shuffle(patterns)
    made = []
    for pattern, (before, after) in zip(patterns, itertools.cycle(TAILS), strict=False):
        made.append(before + (pattern * (LENGTH // len(pattern) + 1))[:LENGTH] + after)
        if len(made) == attack.times(whole):
            break
    return made


def read_thought(text: str) -> None:
    """Split a thought off, and read calls in what is left."""
    for begun in (False, True):
        reader = AnswerReader(ThoughtScanner(KNOWN_TAGS[0], begun), FORMATS[0].scanner())
        for start in range(0, len(text), 5):
            reader.feed(text[start : start + 5])
        reader.finish()


def test_long_answers_are_read_in_proportion(attack: Attack) -> None:
    for text in long_texts(attack, 300):
        for number, read in enumerate(ANSWERS):
            with attack.attempt(f"{number} {text[:40]!r}", limit_s=LIMIT_S):
                read(text)


def test_long_calls_are_read_in_proportion(attack: Attack) -> None:
    for text in long_texts(attack, 120):
        for form in FORMATS:
            with attack.attempt(f"{form.name} {text[:40]!r}", limit_s=LIMIT_S):
                split_tool_calls(form, text)
        with attack.attempt(f"thought {text[:40]!r}", limit_s=LIMIT_S):
            read_thought(text)
