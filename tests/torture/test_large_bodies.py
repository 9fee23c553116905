"""Bodies as large as a server reads, in the shapes that cost most, and a client beside them that asks small things."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Iterator
from typing import Final

import httpx
import pytest

from .conftest import SIZE, Attack
from .neighbours import Neighbour, Served, served
from .servers import GATEWAY, PROXY, SCORES, STORE

JSON: Final = {"content-type": "application/json"}
ONE_GIB_IN_MIB: Final = 1024.0
LARGEST: Final = 15 * 2**20
FITTING: Final = 400_000
"""Bytes of a body that is small enough for the gateway's context to be read and rendered."""

Shape = Callable[[int], str]
"""A JSON value of about so many bytes."""


def _many(item: str) -> Shape:
    return lambda size: "[" + ",".join([item] * (size // (len(item) + 1))) + "]"


def _fields(size: int) -> str:
    return "{" + ",".join(f'"{number:x}":0' for number in range(size // 10)) + "}"


SHAPES: Final[dict[str, Shape]] = {
    "empty lists": _many("[]"),
    "empty objects": _many("{}"),
    "zeros": _many("0"),
    "one word": lambda size: json.dumps("a" * size),
    "words": lambda size: json.dumps("one 2 " * (size // 6)),
    "white space": lambda size: " " * size + '""',
    "escapes": lambda size: '"' + "\\u4f60" * (size // 6) + '"',
    "half surrogates": lambda size: '"' + "\\ud800" * (size // 6) + '"',
    "tool messages": _many('{"role":"tool","content":"1","tool_call_id":"a"}'),
    "questions": _many('{"role":"user","content":"a"}'),
    "fields": _fields,
    "nesting": lambda size: "[" * (size // 2) + "]" * (size // 2),
    "nesting within bounds": _many("[" * 90 + "]" * 90),
    "no end": lambda size: '[{"role":"user","content":"' + "a" * size,
}

CHAT: Final = '{"model":"tiny","messages":%s}'
CONTENT: Final = '{"model":"tiny","max_tokens":1,"messages":[{"role":"user","content":%s}]}'
INPUT: Final = '{"model":"tiny","input":%s}'
GATEWAY_ROUTES: Final = {
    "/v1/chat/completions": (CHAT, CONTENT),
    "/v1/messages": (CHAT, CONTENT),
    "/v1/messages/count_tokens": (CHAT, CONTENT),
    "/v1/responses": (INPUT,),
    "/v1/responses/input_tokens": (INPUT,),
}
SCORE_ROUTES: Final = {
    "/score": ('{"messages":%s}', '{"prompt":"a","response":%s}'),
    "/score-pair": ('{"prompt":"a","chosen":"a","rejected":%s}',),
    "/score/batch": ('{"items":%s}',),
    "/score-pair/batch": ('{"items":[%s]}',),
}
STORE_ROUTES: Final = {
    "/v1/agl/queues/rollouts/enqueue": ('{"rollouts":%s}', '{"rollouts":[{"input":%s}]}'),
    "/v1/agl/rollouts": ('{"input":%s}',),
    "/v1/agl/spans/batch": ('{"spans":%s}',),
    "/v1/agl/resources": ('{"a":%s}',),
    "/v1/agl/rollouts/search": ('{"rollout_id_in":%s}',),
}


@pytest.fixture(scope="module")
def gateway() -> Iterator[Served]:
    with served(GATEWAY) as server:
        yield server


def _attack(attack: Attack, server: Served, routes: dict[str, tuple[str, ...]], sizes: tuple[int, ...]) -> None:
    tries = list(itertools.product(routes, SHAPES, sizes))
    random.Random(0).shuffle(tries)
    with Neighbour(f"{server.url}/") as neighbour, httpx.Client(timeout=120) as client:
        for path, name, size in tries[: attack.times(len(tries))]:
            for frame in routes[path]:
                body = (frame % SHAPES[name](size)).encode()
                with attack.attempt(f"{name}, {len(body)} bytes, to {path}"), attack.memory_of(server.pid):
                    answer = client.post(f"{server.url}{path}", content=body, headers=JSON)
                    assert answer.status_code < 500 or "127.0.0.1:9" in answer.text, answer.text[:300]
                    attack.neighbour(neighbour.longest())
    assert (attack.row.peak_mib or 0) < ONE_GIB_IN_MIB, "more than 1 GB"


def test_large_bodies_at_the_gateway(attack, gateway):
    _attack(attack, gateway, GATEWAY_ROUTES, (FITTING, round(LARGEST * min(1.0, SIZE))))


def test_large_bodies_at_the_reward_service(attack):
    with served(SCORES) as server:
        _attack(attack, server, SCORE_ROUTES, (round(LARGEST * min(1.0, SIZE)),))


def test_large_bodies_at_the_proxy(attack):
    with served(PROXY) as server:
        _attack(attack, server, {"/v1/chat/completions": (CHAT, CONTENT)}, (round(LARGEST * min(1.0, SIZE)),))


def test_large_bodies_at_the_store(attack):
    with served(STORE) as server:
        _attack(attack, server, STORE_ROUTES, (round(4 * LARGEST * min(1.0, SIZE)),))


def test_a_hundred_thousand_tool_results_in_a_row(attack):
    """Tool results in a row become one turn: what is joined must not be copied for each of them."""
    with served(GATEWAY, "1000000") as server, Neighbour(f"{server.url}/") as neighbour:
        results = SHAPES["tool messages"](50 * attack.times(100_000))
        with attack.attempt("tool results", limit_s=120), attack.memory_of(server.pid):
            body = CHAT % results
            answer = httpx.post(f"{server.url}/v1/messages/count_tokens", content=body, headers=JSON, timeout=120)
            assert answer.status_code in (200, 400)
            attack.neighbour(neighbour.longest())
