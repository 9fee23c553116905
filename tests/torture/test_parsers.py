"""Our own readers of text that somebody else wrote: answers, tool calls, thoughts, templates, settings, data files.

None raises what its caller does not expect, and none takes time by the square of a text's length.
"""

from __future__ import annotations

import itertools
import json
import random
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from hypothesis import given, seed, settings
from hypothesis import strategies as st

from mini_agentic_rl.commands import TrainConfig
from mini_agentic_rl.commands.config_file import read_config
from mini_agentic_rl.datasets import load_task_dataset
from mini_agentic_rl.datasets.formats import FORMS, examples_of
from mini_agentic_rl.datasets.messages import ShapeError
from mini_agentic_rl.errors import UserError
from mini_agentic_rl.gateway.render.decoding import AnswerReader, ThoughtScanner, default_tags
from mini_agentic_rl.gateway.tool_formats import FORMATS, ToolCall, parse_arguments, split_tool_calls
from mini_agentic_rl.rewards.base import Sample
from mini_agentic_rl.rewards.extract import extract_answer, extract_option
from mini_agentic_rl.rewards.format import has_answer_line, has_boxed_answer, has_thinking, tool_calls
from mini_agentic_rl.rewards.math import is_correct, normalise_answer, same_answer
from mini_agentic_rl.rewards.values import unit_of
from mini_agentic_rl.types import PromptTemplate

from .conftest import Attack

PIECES = [
    *(
        "answer: ",
        "answer: 1\n",
        "#### 1\n",
        "####",
        "\\boxed{",
        "\\boxed{1}",
        "\\boxed 1",
        "{",
        "}",
        "(",
        ")",
        "[",
        "]",
    ),
    *(
        "1",
        "1,",
        "1,234",
        "1 ",
        "1 234 ",
        "\\frac{1}{2}",
        "\\text{",
        "** ",
        "**a",
        "__a",
        "_",
        "*",
        "$",
        "$1",
        "-",
        "−",
        "1/",
    ),
    *(
        "%",
        "1e9",
        "1e999",
        " and ",
        "±",
        "about ",
        "=",
        "a=",
        ".",
        "1.",
        "..",
        "option ",
        "(A)",
        "A) ",
        "\n",
        " ",
        "\t",
        "½",
    ),
    *("∞", "km", " km/", "square ", "^2", "²", "approx. ", "thousand ", "\u00a0", "\x00", "\ud800", "🙂", "é"),
    *("<think>", "</think>", "[THINK]", "<tool_call>", "</tool_call>", "```", "```json\n", "[TOOL_CALLS]", "[ARGS]"),
    *(
        "[CALL_ID]",
        "<|python_tag|>",
        "<|tool_call|>",
        '{"name":',
        '{"name": "a", "arguments": {}}',
        '[{"name":',
        "\n[a(",
    ),
    *(
        "[a(b=1)]",
        "[a(b='",
        '"',
        "'",
        "\\",
        "'''",
        '"""',
        "\n{",
        "\n[",
        "[[",
        '{"a":',
        "; ",
        ":",
        "x" * 600,
        "9" * 5000,
    ),
]
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
    lambda text: tool_calls(Sample(prompt="", completion=text, columns={})),
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


def texts() -> st.SearchStrategy[str]:
    return st.lists(st.sampled_from(PIECES) | st.text(max_size=4), max_size=30).map("".join)


def read_calls(text: str) -> None:
    """Read the calls of a text in every format, whole and cut up: both give the same."""
    for form in FORMATS:
        content, calls = split_tool_calls(form, text)
        scanner, parts = form.scanner(), []
        for start in range(0, len(text), 7):
            parts += scanner.feed(text[start : start + 7])
        parts += scanner.finish()
        assert "".join(part for part in parts if isinstance(part, str)) == content
        cut = [part for part in parts if isinstance(part, ToolCall)]
        assert [(call.name, call.arguments) for call in cut] == [(call.name, call.arguments) for call in calls]
        for call in calls:
            assert isinstance(parse_arguments(call.arguments), dict)


def read_thought(text: str) -> None:
    """Split a thought off, and read calls in what is left."""
    for begun in (False, True):
        reader = AnswerReader(ThoughtScanner(default_tags(), begun), FORMATS[0].scanner())
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


def test_any_text_is_read(attack: Attack) -> None:
    @seed(17)
    @settings(max_examples=attack.times(3_000), database=None)
    @given(texts())
    def tried(text: str) -> None:
        with attack.attempt(text, limit_s=LIMIT_S * 3):  # algebra in its process has seconds of its own
            for read in (*ANSWERS[:8], ANSWERS[10]):
                read(text)
            read_calls(text)
            read_thought(text)

    tried()


def test_a_list_of_slow_expressions_costs_no_more_than_one(attack: Attack) -> None:
    for number in range(attack.times(10)):  # 5 s each
        slow = [f"{9 + number}^{{9^{{9^{{{one}}}}}}}" for one in range(5, 12)]
        gold = "{" + ", ".join(f"x^{one}" for one in range(7)) + "}"
        with attack.attempt(number, limit_s=40):
            began = time.monotonic()
            assert not is_correct("Answer: {" + ", ".join(slow) + "}", gold)
            assert time.monotonic() - began < 30


TEMPLATES = [
    *("{a:>999999999}", "{a:999999999999999999}", "{a:.999999999f}", "{a:{a}}", "{a!r:>99999999}", "{a:0>9999999999}"),
    *(
        "{a.__class__}",
        "{a.__class__.__mro__[1].__subclasses__}",
        "{b.__init__.__globals__}",
        "{b._x}",
        "{a[__class__]}",
    ),
    *(
        "{",
        "}",
        "{}",
        "{0}",
        "{a!z}",
        "{a:",
        "{a.b.c}",
        "{a[0][0]}",
        "{a" + "[0]" * 5000 + "}",
        "{" * 10_000,
        "{a:%Y%m%d}",
    ),
    *("{a:{b}{c}}", "{nothing}", "{a!s:" + "9" * 5000 + "}", "{a:١٠٠٠٠٠٠٠٠٠}"),
]


def test_a_template_shows_no_inside_and_fills_no_memory(attack: Attack) -> None:
    class Task:
        """Something with a way to its module."""

        _x = "private"

    for template in TEMPLATES[:: max(1, len(TEMPLATES) // attack.times(10 * len(TEMPLATES)))]:
        for value in (7, 1.5, "text", Task(), [1]):
            with attack.attempt(f"{template[:60]} of {value!r:.20}", limit_s=LIMIT_S):
                try:
                    text = PromptTemplate(template=template).format(a=value, b=Task(), c=9)
                except (ValueError, LookupError, AttributeError, TypeError):
                    continue  # as str.format refuses, too
                assert len(text) < 100_000
                assert "private" not in text
                assert "._" not in template


BOMBS = {
    "aliases.yaml": "a: &a [1,1,1,1,1,1,1,1,1]\n"
    + "".join(f"{new}: &{new} [{','.join([f'*{old}'] * 9)}]\n" for old, new in itertools.pairwise("abcdefghijklm")),
    "merges.yaml": "a: &a {k: 1}\n"
    + "".join(
        f"{new}: &{new} {{<<: [{','.join([f'*{old}'] * 9)}]}}\n" for old, new in itertools.pairwise("abcdefghijklm")
    ),
    "itself.yaml": "model: &a [*a]\n",
    "itself_too.yaml": "model: &a {k: *a}\n",
    "deep.yaml": "model: " + "[" * 20_000,
    "deep_blocks.yaml": "\n".join("  " * n + "a:" for n in range(400)),
    "deep.json": '{"model": ' + "[" * 20_000 + "]" * 20_000 + "}",
    "deep.toml": "model = " + "[" * 20_000 + "]" * 20_000,
    "digits.yaml": "seed: " + "9" * 100_000,
    "digits.json": '{"seed": ' + "9" * 100_000 + "}",
    "sixties.yaml": "seed: " + ":".join(["59"] * 60_000),
    "long.yaml": "model: " + "x" * 2**22,
    "code.yaml": "model: !!python/object/apply:os.system ['true']",
    "nul.yaml": "model: 'a\x00b'",
    "surrogate.json": '{"model": "\\ud800"}\n{',
    "list.yaml": "[1, 2]",
    "number.json": "1",
    "infinite.json": '{"learning_rate": 1e999, "unknown_name": NaN}',
    "keys.yaml": "? [1, 2]\n: 1\n",
    "empty.toml": "a",
}


def test_a_file_of_settings_is_read_or_refused_in_one_line(attack: Attack, tmp_path: Path) -> None:
    for name, text in BOMBS.items():
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        with attack.attempt(name, limit_s=LIMIT_S):
            try:
                read_config(path, TrainConfig)
            except UserError as refusal:
                one_line = str(refusal)
                if len(one_line) > 10_000 or "\n" in one_line:
                    raise AssertionError(f"{len(one_line)} characters of refusal") from None


def nested_json(depth: int) -> str:
    return '{"question": ' + "[" * depth + "]" * depth + ', "answer": "1"}'


DATA: dict[str, bytes] = {
    "long line.jsonl": b'{"question": "' + b"x" * 2**24 + b'", "answer": "1"}',
    "no newline.jsonl": b"x" * 2**24,
    "deep.jsonl": nested_json(100_000).encode(),
    "deep.json": b"[" * 100_000,
    "digits.jsonl": b'{"question": "q", "answer": ' + b"9" * 100_000 + b"}",
    "nul.jsonl": b"\x00" * 1000,
    "binary.parquet": b"PAR1" + bytes(range(256)) * 40 + b"PAR1",
    "binary.csv": bytes(range(256)) * 40,
    "latin.jsonl": '{"question": "é", "answer": "1"}'.encode("latin-1"),
    "quotes.csv": b"question,answer\n" + b'"' * 200_001,
    "wide.csv": b"," * 200_000 + b"\n" + b"," * 200_000,
    "marks.jsonl": json.dumps({"question": "q", "answer": "####" * 50_000}).encode(),
    "scalar.json": b"1",
    "empty.json": b"",
    "surrogate.jsonl": b'{"question": "\\ud800", "answer": "\\udfff"}',
}


def test_a_data_file_is_read_or_refused(attack: Attack, tmp_path: Path) -> None:
    for name, content in DATA.items():
        path = tmp_path / name
        path.write_bytes(content)
        with attack.attempt(name, limit_s=LIMIT_S * 3):
            try:
                list(load_task_dataset(path, "all"))
            except UserError as refusal:
                told = str(refusal)
                if len(told) > 10_000:
                    raise AssertionError(f"{len(told)} characters of refusal") from None


def test_a_record_of_any_shape_is_an_example_or_refused(attack: Attack) -> None:
    fields = [
        "question",
        "prompt",
        "messages",
        "answer",
        "completion",
        "chosen",
        "rejected",
        "label",
        "tools",
        "ground_truth",
    ]
    leaves: Sequence[Any] = [None, "", "q", "#### 1", 0, 1.5, True, [], {}, "\ud800", {"role": "user"}, "####", 10**400]
    values = st.recursive(
        st.sampled_from(leaves),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["role", "content", "from", "value", "tool_calls", "function"]), inner, max_size=3
            )
        ),
        max_leaves=8,
    )

    @seed(17)
    @settings(max_examples=attack.times(4_000), database=None)
    @given(st.dictionaries(st.sampled_from(fields), values, max_size=5), st.sampled_from(FORMS))
    def tried(record: dict[str, Any], form: Any) -> None:
        with attack.attempt(f"{form} {record}"), suppress(ShapeError):
            examples_of(record, form, "id")

    tried()
