"""JSON of the store's wire: models and errors in large values."""

from __future__ import annotations

import json
import math

import pytest

from mini_agentic_rl.store.http.wire_json import encode
from mini_agentic_rl.types import Rollout, Span


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
