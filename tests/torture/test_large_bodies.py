"""Bodies as large as a server reads, in the shapes that cost most, and a client beside them that asks small things."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Final

import httpx
import pytest

from mini_agentic_rl.store.http import routes as wire

from .conftest import SIZE, Attack
from .neighbours import Neighbour, Served, served
from .servers import GATEWAY, PROXY, RECORDING_PROXY, SCORES, STORE, TINKER, UPSTREAM

JSON: Final = {"content-type": "application/json"}
LARGEST: Final = round(15 * 2**20 * min(1.0, SIZE))
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
    "blanks": lambda size: json.dumps(" " * size),
    "special tokens": lambda size: json.dumps("<|im_end|>" * (size // 10)),
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
BESIDE: Final = '{"model":"tiny","max_tokens":1,"messages":[{"role":"user","content":"a"}],"FIELD":%s}'
TOOLS, METADATA, SYSTEM = (BESIDE.replace("FIELD", name) for name in ("tools", "metadata", "system"))
FRAMES: Final = {
    "/v1/chat/completions": (CHAT, CONTENT, TOOLS, METADATA),
    "/v1/messages": (CHAT, CONTENT, SYSTEM, TOOLS),
    "/v1/responses": (
        '{"model":"tiny","input":%s}',
        '{"model":"tiny","input":[{"role":"user","content":[{"type":"input_text","text":%s}]}]}',
        '{"model":"tiny","input":[{"type":"function_call_output","call_id":"a","output":%s}]}',
        '{"model":"tiny","input":"a","instructions":%s}',
    ),
}
"""What of a request is large. The frames of a route take turns, so that each shape comes to each route."""
PROXY_ROUTES: Final = {**FRAMES, "/rollout/r/attempt/a/v1/chat/completions": (CHAT, CONTENT)}
GATEWAY_ROUTES: Final = {
    **PROXY_ROUTES,
    "/v1/messages/count_tokens": FRAMES["/v1/messages"],
    "/v1/responses/input_tokens": FRAMES["/v1/responses"],
}
SCORE_ROUTES: Final = {
    "/score": ('{"messages":%s}', '{"prompt":"a","response":%s}', '{"prompt":%s,"response":"a"}'),
    "/score-pair": ('{"prompt":"a","chosen":"a","rejected":%s}', '{"prompt":%s,"chosen":"a","rejected":"b"}'),
    "/score/batch": ('{"items":%s}', '{"items":[{"prompt":"a","response":%s}]}'),
    "/score-pair/batch": ('{"items":%s}', '{"items":[{"prompt":"a","response_a":"a","response_b":%s}]}'),
}

SAMPLE: Final = '{"sampling_session_id":"s","prompt":{"chunks":%s},"sampling_params":%s}'
TINKER_ROUTES: Final = {
    "/api/v1/asample": (
        SAMPLE % ("%s", "{}"),
        SAMPLE % ('[{"tokens":%s}]', "{}"),
        SAMPLE % ("[]", '{"stop":%s}'),
        '{"prompt":{"chunks":[]},"target_prompt_logprobs":{"dtype":"int64","data":%s}}',
        '{"prompt":{"chunks":[]},"sampling_session_id":%s}',
    ),
    "/api/v1/telemetry": ('{"events":%s}',),
    "/api/v1/create_session": ('{"tags":%s}', '{"user_metadata":{"a":%s}}'),
}


def _store_routes() -> dict[str, tuple[str, ...]]:
    """Give every route of the store that takes a body, with each of its fields."""
    routes = {}
    for route in wire.ROUTES:
        if route.method == "POST" and not route.waits:
            fields = [] if route.request is None else list(route.request.model_fields)
            path = f"{wire.PREFIX}/{route.path}".replace("{", "").replace("}", "")
            routes[path] = ("%s", '{"a":%s}', *(f'{{"{name}":%s}}' for name in fields))
    span = '{"rollout_id":"r","attempt_id":"a","sequence_id":1,"trace_id":"1","span_id":"1","name":"a","%s":%%s}'
    routes["/v1/agl/spans"] += tuple(span % name for name in ("attributes", "events", "links", "resource", "context"))
    routes["/v1/agl/spans/batch"] += ('{"spans":[%s]}' % (span % "events"),)
    routes["/v1/agl/queues/rollouts/enqueue"] += ('{"rollouts":[{"input":%s}]}',)
    return routes


def _attack(attack: Attack, server: Served, routes: dict[str, tuple[str, ...]], size: int, *, turn: int = 0) -> None:
    tries = [
        (path, name, frames[(number + turn) % len(frames)])
        for path, frames in routes.items()
        for number, name in enumerate(SHAPES)
    ]
    random.Random(turn).shuffle(tries)
    with Neighbour(f"{server.url}/") as neighbour, httpx.Client(timeout=600) as client:
        for path, name, frame in tries[: attack.times(len(tries))]:
            body = (frame % SHAPES[name](size)).encode()
            what = f"{name}, {len(body)} bytes, to {path}"
            with attack.attempt(what, neighbour=neighbour), attack.memory_of(server.pid):
                answer = client.post(f"{server.url}{path}", content=body, headers=JSON)
                assert answer.status_code < 500 or "127.0.0.1:9" in answer.text, answer.text[:300]


@pytest.mark.parametrize("turn", range(2))
def test_bodies_that_fit_the_gateway(attack, turn):
    with served(GATEWAY) as server:
        _attack(attack, server, GATEWAY_ROUTES, FITTING, turn=turn)


def test_large_bodies_at_a_gateway_of_a_million_tokens(attack):
    with served(GATEWAY, "1000000") as server:
        _attack(attack, server, GATEWAY_ROUTES, LARGEST)


def test_large_bodies_at_the_reward_service(attack):
    with served(SCORES) as server:
        _attack(attack, server, SCORE_ROUTES, LARGEST)


def test_large_bodies_at_the_proxy(attack):
    with served(PROXY) as server:
        _attack(attack, server, PROXY_ROUTES, LARGEST)


def test_large_bodies_that_an_upstream_answers(attack):
    """What goes to the upstream, and what is recorded of it, is as large as what came."""
    with served(UPSTREAM) as upstream, served(RECORDING_PROXY, upstream.url) as server:
        root, scope = server.url.split()
        routes = {f"{scope}{path}": frames for path, frames in FRAMES.items()}
        _attack(attack, Served(root, server.pid), routes, LARGEST)


def test_large_bodies_at_the_store(attack):
    with served(STORE) as server:
        _attack(attack, server, _store_routes(), 2 * LARGEST)


def test_large_bodies_at_tinker(attack):
    with served(TINKER) as server:
        _attack(attack, server, TINKER_ROUTES, LARGEST)


def test_a_hundred_thousand_tool_results_in_a_row(attack):
    """Tool results in a row become one turn: what is joined must not be copied for each of them."""
    with served(GATEWAY, "1000000") as server, Neighbour(f"{server.url}/") as neighbour:
        body = CHAT % SHAPES["tool messages"](50 * attack.times(100_000))
        with attack.attempt("tool results", limit_s=120, neighbour=neighbour), attack.memory_of(server.pid):
            answer = httpx.post(f"{server.url}/v1/messages/count_tokens", content=body, headers=JSON, timeout=120)
            assert answer.status_code in (200, 400)
