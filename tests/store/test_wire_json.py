"""JSON of the store's wire: the same text whether it is written at once or in steps."""

from __future__ import annotations

import json
import math
import time

import pytest

from mini_agentic_rl.store.http.wire_json import encode, is_large
from mini_agentic_rl.types import Rollout, Span

LARGE = {
    "numbers": list(range(50_000)),
    "text": "a" * 200_000,
    "names": {f"n{number}": number for number in range(50_000)},
    'a "name"\\ with \ud800 and é': {"x": [{"y": "b" * 70_000}] * 3},
    "small": [None, True, 1.5, [], {}],
    "rows": [[number] * 90 for number in range(300)],
}


def test_a_large_value_is_written_as_a_small_one_is():
    assert is_large(LARGE)
    assert json.loads(encode(LARGE, "")) == LARGE
    assert json.loads(encode([LARGE, (1, LARGE)], "")) == [LARGE, [1, LARGE]]


def test_a_large_model_is_written_with_its_infinities_and_its_extra_fields():
    rollout = Rollout(rollout_id="r", input={"x": [math.inf] * 20_000}, start_time=1.0, status="queuing", mode="train")
    written = json.loads(encode([rollout], ""))
    assert written == [rollout.model_dump()]
    assert written[0]["input"]["x"][0] == math.inf
    span = Span.from_attributes(attributes={"a": "b" * 90_000}, rollout_id="r", attempt_id="a", sequence_id=1)
    span = Span.model_validate({**span.model_dump(), "extra": [1]})
    assert json.loads(encode(span, "")) == json.loads(span.model_dump_json())


def test_what_cannot_be_sent_is_named_in_a_large_value_too():
    with pytest.raises(ValueError, match=r"a\[1\].b cannot be sent"):
        encode({"a": ["x" * 100_000, {"b": object()}]}, "")


def test_the_look_at_a_value_ends_early():
    began = time.thread_time()
    assert is_large([LARGE["numbers"]] * 1000)
    assert is_large({"a": "x" * 10**7})
    assert not is_large([{"rollout_id": "ro-1", "input": {"task": "t" * 100}}] * 20)
    assert time.thread_time() - began < 0.05
