"""Schemas of hostile clients: quick to send, and slow or large to compile or to follow."""

from __future__ import annotations

import random
import string
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import httpx
import pytest

from .conftest import SIZE, Attack
from .neighbours import Neighbour, Served, served
from .servers import MODEL, question

Schema = dict[str, Any]


@pytest.fixture(scope="module")
def model() -> Iterator[Served]:
    with served(MODEL, '{"context_length": 512}') as server:
        yield server


def letters(rng: random.Random, most: int) -> str:
    return "".join(rng.choices(string.ascii_lowercase, k=rng.randint(1, most)))


def all_patterns(rng: random.Random) -> Schema:
    words = [letters(rng, 3) for _ in range(rng.randint(8, 40))]
    return {"type": "string", "allOf": [{"pattern": f".*{word}.*"} for word in words]}


def multiple(rng: random.Random) -> Schema:
    return {"type": "integer", "multipleOf": 10 ** rng.randint(1, 9) + rng.randint(1, 99)}


def counted_pattern(rng: random.Random) -> Schema:
    return {"type": "string", "pattern": f"^(.*{letters(rng, 2)}){{{rng.randint(1, 300)}}}.{{{rng.randint(1, 900)}}}$"}


def nested_pattern(rng: random.Random) -> Schema:
    return {"type": "string", "pattern": "(" * 20 + "a" + "|b)*" * 20 + letters(rng, 5)}


def much_of_anything(rng: random.Random) -> Schema:
    return {"type": "array", "items": {}, "minItems": rng.randint(0, 10**9), "maxItems": 10**9}


def long_string(rng: random.Random) -> Schema:
    return {"type": "string", "minLength": rng.randint(0, 10**8), "maxLength": 10**8}


def many_objects(rng: random.Random) -> Schema:
    names = [f"a{index}" for index in range(rng.randint(2, 30))]
    return {
        "anyOf": [
            {"type": "object", "properties": {name: {"type": "integer"} for name in names[: index % len(names) + 1]}}
            for index in range(rng.randint(1, 400))
        ]
    }


def many_values(rng: random.Random) -> Schema:
    return {"enum": [letters(rng, 9) + str(index) for index in range(rng.randint(1, 6000))]}


def one_value(rng: random.Random) -> Schema:
    return {"const": letters(rng, 4) * rng.randint(1, 20_000)}


def itself(rng: random.Random) -> Schema:
    one = {"$ref": "#/$defs/x"}
    two = {"anyOf": [one, {"type": "array", "items": one}, {"type": "string"}]}
    return {"$defs": {"x": {"anyOf": [two] * rng.randint(1, 40)}}, "$ref": "#/$defs/x"}


def circle(rng: random.Random) -> Schema:
    count = rng.randint(1, 50)
    return {"$defs": {str(i): {"$ref": f"#/$defs/{(i + 1) % count}"} for i in range(count)}, "$ref": "#/$defs/0"}


def deep(rng: random.Random) -> Schema:
    schema: Schema = {"type": "null"}
    for _ in range(rng.randint(1, 90) // 2):
        schema = {"type": "array", "items": schema}
    return schema


def many_properties(rng: random.Random) -> Schema:
    count = rng.randint(1, 1500)
    return {
        "type": "object",
        "properties": {
            f"p{index}": {"type": "string", "pattern": f"^[a-z]{{{index % 50}}}$"} for index in range(count)
        },
        "required": [f"p{index}" for index in range(0, count, 2)],
    }


def wide_range(rng: random.Random) -> Schema:
    low = rng.choice([-1, 1]) * rng.random() * 10 ** rng.randint(-300, 300)
    return {"type": rng.choice(["number", "integer"]), "minimum": low, "maximum": abs(low) * 3 + 1}


def no_schema(rng: random.Random) -> Schema:
    names = ["type", "enum", "anyOf", "$ref", "pattern", "items", "required", "x-guidance", "format", "minimum"]
    values = [None, 1e308, -1, "", "objekt", [], {}, [{}], {"a": 1}, "(", "\ud7ff", 10**40, True]
    return {name: rng.choice(values) for name in rng.sample(names, rng.randint(1, 5))}


def honest(rng: random.Random) -> Schema:
    kinds: list[Schema] = [{"type": "string"}, {"type": "integer"}, {"type": "boolean"}, {"enum": ["a", "b"]}]
    properties = {letters(rng, 8): rng.choice(kinds) for _ in range(rng.randint(1, 8))}
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


FAMILIES: list[Callable[[random.Random], Schema]] = [
    *(all_patterns, multiple, counted_pattern, nested_pattern, much_of_anything, long_string, many_objects),
    *(many_values, one_value, itself, circle, deep, many_properties, wide_range, no_schema, honest),
]


def complete(attack: Attack, model: Served, tries: Iterable[tuple[object, Schema, int]], limit_s: float) -> None:
    """Ask for completions: what is tried, the schema, and the number of choices. A refusal names the field."""
    with (
        httpx.Client(timeout=120) as http,
        Neighbour(model.url, 0.05, bodies=[question()]) as neighbour,
        attack.memory_of(model.pid),
    ):
        for what, schema, n in tries:
            with attack.attempt((what, schema), limit_s=limit_s, neighbour=neighbour):
                form = {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": schema}}
                answer = http.post(model.url, json=question(response_format=form, max_tokens=24, n=n))
                assert answer.status_code in (200, 400), f"{answer.status_code}: {answer.text[:300]}"
                body = answer.json()
                assert answer.status_code == 200 or body["error"]["message"]


def test_generated_schemas_are_compiled_or_refused_while_a_neighbour_is_answered(attack: Attack, model: Served) -> None:
    rng = random.Random(17)
    count = attack.times(500) if SIZE >= 1 else len(FAMILIES)
    families = [FAMILIES[number % len(FAMILIES)] for number in range(count)]
    complete(attack, model, ((family.__name__, family(rng), 1) for family in families), limit_s=30)


def test_schemas_that_are_slow_to_follow(attack: Attack, model: Served) -> None:
    rng = random.Random(20)

    def tries() -> Iterator[tuple[object, Schema, int]]:
        for number in range(attack.times(40)):
            properties = {"a": many_objects(rng), "b": one_value(rng)}
            yield number, {"type": "object", "properties": properties, "required": ["a"]}, rng.choice([1, 8, 32])

    complete(attack, model, tries(), limit_s=60)
