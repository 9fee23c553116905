"""JSON written in steps: the text that one call would write, while other threads get their turn."""

from __future__ import annotations

import json
import math
import threading
import time

import pytest

from mini_agentic_rl.http import LARGE, encode_in_steps, in_steps, size_of
from mini_agentic_rl.http.json_text import encode

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


def test_no_call_writes_much_of_a_large_value():
    written = []

    def write(value):
        written.append(encode(value))
        return written[-1]

    value = {"zeros": [0] * 1_000_000, "lists": [[[0, 0]] * 10] * 20_000}
    assert json.loads(in_steps(value, write)) == value
    assert max(map(len, written)) < 256 * 1024


def test_another_thread_gets_its_turn_meanwhile():
    value = {"zeros": [0] * 4_000_000}
    writing = threading.Thread(target=encode_in_steps, args=(value,))
    writing.start()
    turns = 0
    while writing.is_alive():
        time.sleep(0.001)
        turns += 1
    assert turns > 3


def test_the_size_is_about_that_of_the_text_and_the_look_ends_early():
    assert 16 < size_of({"a": "b" * 10, "c": [1, 2]}, LARGE) < 100
    began = time.thread_time()
    assert size_of([VALUES["lists"]] * 1000, LARGE) > LARGE
    assert time.thread_time() - began < 0.5
