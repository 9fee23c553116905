"""JSON is read and written as Python's own module does it, whatever its size, within bounds and in pieces."""

from __future__ import annotations

import itertools
import json
import math
import random
import sys
import threading
import time
from typing import Any

import pytest

from mini_agentic_rl.http import (
    LARGE,
    MAX_DEPTH,
    BadRequestError,
    encode,
    encode_in_steps,
    json_object,
    json_text,
    parse_json,
    size_of,
)
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
        ('{"b":1,"a":', '"' + "x" * 4000 + '"', "}"),
        ("[", "1," * 2000 + "1", "]"),
        ("[", '"],",' * 800 + "1", "]"),
        ("[[1],", "[2]," * 1000 + "1", "]"),
    ],
)
def test_no_level_of_a_nested_text_is_read_again_for_each_one_above_it(opening, middle, closing, monkeypatch):
    class Counting(json.JSONDecoder):
        characters = 0

        def raw_decode(self, text, start=0):
            end = len(text)
            try:
                value, end = super().raw_decode(text, start)
            finally:
                self.characters += end - start
            return value, end

    chain = opening * 97 + middle + closing * 97
    text = "[" + ",".join([chain] * (500_000 // len(chain))) + "]"
    decoder = Counting()
    monkeypatch.setattr(json_text, "_ANY", decoder)
    assert parse_json(text) == json.loads(text)
    assert decoder.characters < 4 * len(text)  # 50 times and more with each level read again


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
    text = "[" + "[]," * 250_000 + "[]]"
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
    assert turns[0] > 4, f"{turns[0]} turns with a switch interval of {sys.getswitchinterval()} s"


def test_what_is_answered_never_holds_nan_or_infinity():
    value = {"a": math.nan, "b": [1.5, -math.inf, {"c": (math.inf, 2)}], "d": "NaN", "e": 10**30}

    def refuse(name):
        raise AssertionError(name)

    assert json.loads(encode(value), parse_constant=refuse) == {
        "a": None,
        "b": [1.5, None, {"c": [None, 2]}],
        "d": "NaN",
        "e": 10**30,
    }


@pytest.mark.parametrize(
    ("frame", "place"),
    [
        ('{"metadata": {"a": "NaN", "b": [1, {"c": %s}]}}', "metadata.b[1].c"),
        ('{"a": [[], [], {}, "Infinity", %s, 1]}', "a[4]"),
        ('{"%s": %%s}' % ("n" * 9000), "n" * 200 + "…"),
    ],
)
def test_a_number_that_json_lacks_is_refused_with_its_place(frame, place):
    for number, pad in itertools.product(["NaN", "-Infinity", "1e400", "9" * 400 + ".0"], ["", PAD]):
        body = (frame % number + pad).encode()
        assert json_object(body)
        with pytest.raises(BadRequestError) as refusal:
            json_object(body, finite=True)
        assert refusal.value.param == place
        assert refusal.value.message.startswith(f"{place}: {number[:40]}")


@pytest.mark.parametrize("pad", ["", PAD])
def test_numbers_of_json_are_taken_to_their_ends(pad):
    text = f'{{"a": [1e308, -1e308, 5e-324, 1e-400, 0.1, -0.0, 1.5E+3, {10**400}], "b": "NaN"}}'
    assert json_object((text + pad).encode(), finite=True) == json.loads(text)


def test_a_number_that_is_refused_may_have_been_overwritten():
    with pytest.raises(BadRequestError, match=r"^NaN is no finite number"):
        json_object(b'{"a": NaN, "a": 1}', finite=True)


def test_a_number_that_is_refused_above_too_many_levels_is_still_refused():
    with pytest.raises(BadRequestError, match=r"^NaN is no finite number"):
        json_object(b'{"a": NaN, "b": ' + b"[" * 150 + b"]" * 150 + b"}", finite=True)


VALUES = {
    "numbers": [0] * 100_000,
    "texts": ["one", "two"] * 50_000,
    "lists": [[]] * 100_000,
    "fields": {f"n{number}": number for number in range(100_000)},
    "one long text": "\u4f60" * 100_000,
    "a long text in each": {'a \\ "name"': [{"role": "user", "content": "é" * 70_000}] * 3},
    "deep": [[[["x" * 100_000, {"y": [1.5, None, True] * 30_000}]]]],
    "no number": [math.nan, math.inf, 1.0] * 30_000,
    "small": {"a": [1, "b", {}]},
    "empty": {},
}


@pytest.mark.parametrize("name", VALUES)
def test_the_text_is_that_of_one_call(name):
    assert encode_in_steps(VALUES[name]) == encode(VALUES[name])


def test_no_call_writes_much_of_a_large_value(monkeypatch):
    written = []

    def write(value):
        written.append(encode(value))
        return written[-1]

    monkeypatch.setattr(json_text, "encode", write)
    value = {"zeros": [0] * 300_000, "lists": [[[0, 0]] * 10] * 5_000}
    assert json.loads(encode_in_steps(value)) == value
    assert max(map(len, written)) < 256 * 1024


def test_the_size_is_about_that_of_the_text_and_the_look_ends_early():
    assert 16 < size_of({"a": "b" * 10, "c": [1, 2]}, LARGE) < 100
    began = time.thread_time()
    assert size_of([VALUES["lists"]] * 1000, LARGE) > LARGE
    assert time.thread_time() - began < 0.5
