"""Numbers that JSON cannot write."""

from __future__ import annotations

import json
import math

import pytest

from mini_agentic_rl.http import BadRequestError
from mini_agentic_rl.http.json_text import encode, json_object


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


@pytest.mark.parametrize("pad", ["", " " * 70_000])
@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e400", "9" * 400 + ".0"])
@pytest.mark.parametrize(
    ("frame", "place"),
    [
        ('{"metadata": {"a": "NaN", "b": [1, {"c": %s}]}}', "metadata.b[1].c"),
        ('{"a": %s}', "a"),
        ('{"a": [[], [], {}, "Infinity", %s, 1]}', "a[4]"),
        ('{"%s": %%s}' % ("n" * 9000), "n" * 200 + "…"),
    ],
)
def test_a_number_that_json_has_not_is_refused_with_its_place(frame, place, number, pad):
    body = (frame % number + pad).encode()
    assert json_object(body)
    with pytest.raises(BadRequestError) as refusal:
        json_object(body, finite=True)
    assert refusal.value.param == place
    assert refusal.value.message.startswith(f"{place}: {number[:40]}")


@pytest.mark.parametrize("pad", ["", " " * 70_000])
def test_numbers_of_json_are_taken_to_their_ends(pad):
    text = f'{{"a": [1e308, -1e308, 5e-324, 1e-400, 0.1, -0.0, 1.5E+3, {10**400}], "b": "NaN"}}'
    assert json_object((text + pad).encode(), finite=True) == json.loads(text)


def test_a_number_that_is_refused_may_have_been_overwritten():
    with pytest.raises(BadRequestError, match=r"^NaN is no finite number"):
        json_object(b'{"a": NaN, "a": 1}', finite=True)


def test_a_number_that_is_refused_above_too_many_levels_is_still_refused():
    with pytest.raises(BadRequestError, match=r"^NaN is no finite number"):
        json_object(b'{"a": NaN, "b": ' + b"[" * 150 + b"]" * 150 + b"}", finite=True)
