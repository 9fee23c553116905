"""Numbers that JSON cannot write."""

from __future__ import annotations

import json
import math

from mini_agentic_rl.http.json_text import encode


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
