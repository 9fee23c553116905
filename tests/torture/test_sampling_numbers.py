"""Numbers of a request at the ends of what a number can be, and lists that cost something for each token."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from .conftest import Attack
from .model_server import question, served_model
from .neighbours import Neighbour, Served

EXTREMES = [
    "0", "-0.0", "5e-324", "1e-320", "1e-40", "1e-38", "1e-10", "1e-5", "0.5", "1", "2", "3", "-1", "-1e-320",
    "1e38", "3.5e38", "1e308", "1e309", "-1e309", "1e-400", "NaN", "Infinity", "-Infinity", "1" + "0" * 400, "null",
    "true", '"1"', '"NaN"', "[1]", "1.0000000000000002", "0.99999999999999999999",
    "9007199254740993", "18446744073709551616",
]  # fmt: skip
FIELDS = ["temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "top_k", "seed", "n", "max_tokens"]
VOCABULARY = 300


@pytest.fixture(scope="module")
def model() -> Iterator[Served]:
    with served_model() as server:
        yield server


def strict_json(text: str) -> Any:
    def refuse(name: str) -> None:
        raise AssertionError(f"the answer holds {name}")

    return json.loads(text, parse_constant=refuse)


def check(answer: httpx.Response) -> None:
    assert answer.status_code in (200, 400), f"{answer.status_code}: {answer.text[:300]}"
    body = strict_json(answer.text)
    if answer.status_code == 400:
        assert body["error"]["message"]
        return
    for choice in body["choices"]:
        for entry in choice["logprobs"]["content"]:
            assert -math.inf < entry["logprob"] <= 1e-5
            for top in entry["top_logprobs"]:
                assert -math.inf < top["logprob"] <= 1e-5


def test_extreme_numbers_give_answers_in_numbers_or_a_refusal(attack: Attack, model: Served) -> None:
    rng = random.Random(10)
    with httpx.Client(timeout=60, headers={"Content-Type": "application/json"}) as http:
        for number in range(attack.times(1000)):
            wanted = {"logprobs": "true", "top_logprobs": "5"}
            wanted[FIELDS[number % len(FIELDS)]] = EXTREMES[number // len(FIELDS) % len(EXTREMES)]
            for name in rng.sample(FIELDS[:5], rng.randint(0, 3)):
                wanted.setdefault(name, rng.choice(EXTREMES[:14]))
            if number % 4 == 0:
                wanted["logit_bias"] = f'{{"{rng.randint(-1, VOCABULARY)}": {rng.choice(EXTREMES)}}}'
            body = json.dumps(question()).removesuffix("}") + "".join(f', "{k}": {v}' for k, v in wanted.items()) + "}"
            with attack.attempt(body, limit_s=20):
                check(http.post(model.url, content=body))


def test_lists_that_cost_something_for_each_token(attack: Attack, model: Served) -> None:
    rng = random.Random(11)
    with httpx.Client(timeout=120) as http, Neighbour(model.url, 0.05, bodies=[question()]) as neighbour:
        for number in range(attack.times(60)):
            many = rng.choice([1, 300, 301, 49_152])
            times, count = rng.choice([(1, 1), (500, 4), (600, 4), (1, 5), (1, 5000), (500, 5000), (500_000, 4)])
            wanted: dict[str, object] = [
                {"logit_bias": {str(id_): rng.uniform(-100, 100) for id_ in range(many)}},
                {"stop": ["ab" * times + str(i) for i in range(count)]},
                {"presence_penalty": 2.0, "frequency_penalty": -2.0, "ignore_eos": True},
                {"logprobs": True, "top_logprobs": 20},
                {"top_p": 0.5, "min_p": 1e-320, "top_k": 10**18},
            ][number % 5]
            body = question(**wanted | {"n": rng.choice([1, 8, 32]), "max_tokens": 32})
            neighbour.forget()
            with attack.attempt({name: str(value)[:80] for name, value in wanted.items()}, limit_s=60):
                answer = http.post(model.url, json=body)
                assert answer.status_code in (200, 400), answer.text[:300]
                strict_json(answer.text)
                attack.neighbour(neighbour.longest())
