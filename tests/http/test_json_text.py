"""JSON is read as Python's own module reads it, whatever its size, within bounds and in pieces."""

from __future__ import annotations

import json
import random
import sys
import threading
import time
from typing import Any

import pytest

from mini_agentic_rl.http import MAX_DEPTH, parse_json
from mini_agentic_rl.http.json_text import MAX_CONTAINERS, MAX_FIELDS, MAX_ITEMS

PAD = " " * 70_000
"""Makes a text one that is walked."""
_LEAVES = (1, -2.5, 1e300, True, None, "", "a", '😀é\\"]},{', ",", "]", "x" * 9000, 10**30, float("inf"))


def _value(chance: random.Random, depth: int = 0) -> Any:
    kind = chance.random()
    if depth > 4 or kind < 0.4:
        return chance.choice(_LEAVES)
    count = chance.randrange(14 if depth < 2 else 3)
    if kind < 0.7:
        return [_value(chance, depth + 1) for _ in range(count)]
    return {f"{chance.random()}{chance.choice(',}]')}": _value(chance, depth + 1) for _ in range(count)}


def _read(parse: Any, text: str) -> Any:
    try:
        return parse(text)
    except ValueError:
        return "no JSON"


@pytest.mark.parametrize("seed", range(4))
def test_a_large_text_has_the_value_that_pythons_own_parser_finds_or_none_where_that_finds_none(seed):
    chance = random.Random(seed)
    value = [_value(chance) for _ in range(8)]
    for text in (
        json.dumps(value),
        json.dumps(value, ensure_ascii=False, separators=(",", ":")),
        json.dumps(value, indent=1),
    ):
        assert parse_json(text + PAD) == value
        at = chance.randrange(len(text))
        changed = text[:at] + chance.choice(["", "]", "}", ",", '"', "x", "\\"]) + text[at + chance.randrange(3) :]
        assert _read(parse_json, changed + PAD) == _read(json.loads, changed + PAD)


@pytest.mark.parametrize("pad", ["", PAD])
def test_depth_is_bounded_at_any_size(pad):
    for opening, closing in (("[", "]"), ('{"a":', "}"), ('[{"b":', "}]")):
        levels = MAX_DEPTH // (1 + ("[{" in opening))
        middle = "1" if "{" in opening else ""
        assert parse_json(opening * levels + middle + closing * levels + pad)
        for deep in (levels + 1, 1000, 100_000):
            with pytest.raises(ValueError, match="deep"):
                parse_json(opening * deep + middle + closing * deep + pad)


@pytest.mark.parametrize(
    ("opening", "middle", "closing"),
    [
        ("[", '"' + "x" * 4000 + '"', "]"),
        ('{"a":', '"' + "x" * 4000 + '"', "}"),
        ("[1,", '"' + "x" * 4000 + '"', "]"),
        ('{"b":1,"a":', '"' + "x" * 4000 + '"', "}"),
        ("[", "1," * 2000 + "1", "]"),
        ("[", '"],",' * 800 + "1", "]"),
        ("[[1],", "[2]," * 1000 + "1", "]"),
    ],
)
def test_no_level_of_a_nested_text_is_read_again_for_each_one_above_it(opening, middle, closing):
    chain = opening * 97 + middle + closing * 97
    text = "[" + ",".join([chain] * (1_000_000 // len(chain))) + "]"
    began = time.process_time()
    value = parse_json(text)
    assert time.process_time() - began < 2.5  # 4 s and more with each level read again
    assert value == json.loads(text)


def test_a_comma_that_nothing_follows_is_no_json_in_a_long_array_or_object():
    for text in ("[%s1,]", '{%s"a":1,}', "[[%s1,],1]", '[{%s"b":2,},1]'):
        fill = ('"f":0,' if '"' in text else "0,") * 20_000
        with pytest.raises(ValueError, match="char"):
            parse_json(text.replace("%s", fill))


@pytest.mark.parametrize("pad", ["", PAD])
def test_half_a_surrogate_pair_is_replaced_and_a_whole_one_is_its_character(pad):
    text = r'["\ud800", "\ud83d\ude00", "\\ud800", "\udc00\ud83d", {"\uDFFF": "\u00e9"}]'
    assert parse_json(text + pad) == ["�", "😀", "\\ud800", "��", {"�": "é"}]


def test_more_values_than_memory_is_meant_for_are_refused_before_any_is_made():
    for text in ("[" + "[]," * MAX_CONTAINERS + "[]]", "[" + "0," * (MAX_ITEMS + 1) + "0]"):
        with pytest.raises(ValueError, match="holds more than"):
            parse_json(text)


def test_an_object_has_a_bounded_number_of_fields():
    fields = [f'"{number:x}":0' for number in range(MAX_FIELDS + 1)]
    assert len(parse_json("{" + ",".join(fields[1:]) + "}")) == MAX_FIELDS
    for text in ("{%s}", '[1, {"a": {%s}}]'):
        with pytest.raises(ValueError, match=r"more than \d+ fields"):
            parse_json(text.replace("%s", ",".join(fields)))


def test_other_threads_get_their_turn_while_a_large_text_is_read():
    text = "[" + "[]," * 500_000 + "[]]"
    turns, ended = [0], threading.Event()

    def count() -> None:
        while not ended.wait(0.001):
            turns[0] += 1

    thread = threading.Thread(target=count)
    thread.start()
    parse_json(text)
    ended.set()
    thread.join()
    # One call of Python's own parser would let the other thread run before it and after it.
    assert turns[0] > 10, f"{turns[0]} turns with a switch interval of {sys.getswitchinterval()} s"
