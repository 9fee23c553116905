"""The longest wait of another client beside one costly request, each kind of request alone (docs/reliability.md)."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from .conftest import Attack
from .hostile_upstream import STREAM, WHOLE, HostileUpstream, once
from .neighbours import Neighbour, served
from .servers import GATEWAY, MODEL, PROXY, SCORES, STORE, TINKER, question
from .test_intake import GZIP, Ids, export, packed

CHUNKS = 300_000
MOST_ROWS = 65_536
CHOICE = {"index": 0, "message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}
LONG = "one apple and 2 pears, " * 8000


def one_byte_chunks(url: str, path: str) -> bytes:
    """Send a body of many chunks of one byte; return the beginning of the answer."""
    address = urlsplit(url)
    head = f"POST {path} HTTP/1.1\r\nHost: {address.netloc}\r\nContent-Type: application/json\r\n"
    body = b"1\r\n \r\n" * CHUNKS + b"2\r\n{}\r\n0\r\n\r\n"
    with socket.create_connection((address.hostname or "", address.port or 0), timeout=120) as connection:
        with contextlib.suppress(OSError):  # refused before its end
            connection.sendall(f"{head}Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n".encode() + body)
        try:
            return connection.recv(1000)
        except ConnectionResetError:
            return b""


@pytest.mark.parametrize(
    ("server", "path"),
    [
        (GATEWAY, "/v1/chat/completions"),
        (STORE, "/v1/agl/queues/rollouts/enqueue"),
        (SCORES, "/score"),
        (TINKER, "/api/v1/asample"),
    ],
    ids=["gateway", "store", "reward service", "tinker"],
)
def test_waits_beside_a_body_in_one_byte_chunks(attack: Attack, server: str, path: str) -> None:
    with (
        served(server) as target,
        Neighbour(f"{target.url}/") as neighbour,
        attack.attempt(path, neighbour=neighbour),
        attack.memory_of(target.pid),
    ):
        assert not one_byte_chunks(target.url, path).startswith(b"HTTP/1.1 5")


@pytest.mark.parametrize(
    ("stream", "head", "text"),
    [
        (False, WHOLE, json.dumps({"id": "c", "model": "tiny", "choices": [CHOICE]}).encode()),
        (True, STREAM, b"data: [DONE]\n\n"),
    ],
    ids=["whole", "streamed"],
)
def test_waits_beside_an_upstream_of_one_byte_chunks(attack: Attack, stream: bool, head: bytes, text: bytes) -> None:
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in text + b" " * CHUNKS)
    answer = once(head, b"Transfer-Encoding: chunked\r\n\r\n", chunks, b"0\r\n\r\n")
    with (
        HostileUpstream(lambda _: answer) as upstream,
        served(PROXY, upstream.url) as target,
        Neighbour(f"{target.url}/health") as neighbour,
        attack.attempt(stream, neighbour=neighbour),
        attack.memory_of(target.pid),
    ):
        body = question("0", stream=stream)
        assert httpx.post(f"{target.url}/v1/chat/completions", json=body, timeout=120).status_code != 500


def spans(names: dict[str, str], count: int) -> list[dict[str, Any]]:
    """Return spans of an attempt as the store takes them."""
    return [
        {**names, "sequence_id": n, "trace_id": "1", "span_id": f"{n:x}", "name": "call", "attributes": {"n": n}}
        for n in range(1, count + 1)
    ]


def test_waits_beside_long_requests_to_a_store(attack: Attack, tmp_path: Path) -> None:
    """The neighbour writes heartbeats: each is a transaction that has to come between the parts of a long one."""
    with served(STORE, str(tmp_path / "store.db")) as target, httpx.Client(timeout=300) as http:
        url = f"{target.url}/v1/agl"
        attempt = Ids(target.url).attempt
        names = {name: attempt[name] for name in ("rollout_id", "attempt_id")}
        rollout_ids: list[str] = []
        calls: dict[str, Callable[[], Any]] = {
            "queues/rollouts/enqueue": lambda: {"rollouts": [{"input": {"a": n}} for n in range(MOST_ROWS)]},
            "queues/rollouts/dequeue": lambda: {"limit": 50_000},
            "spans/batch": lambda: {"spans": spans(names, 20_000)},
            "spans/search": lambda: {"rollout_id": names["rollout_id"], "limit": -1},
            "rollouts/search": lambda: {"limit": -1},
            "rollouts/delete": lambda: {"rollout_ids": rollout_ids},
        }
        with Neighbour(f"{url}/heartbeats", bodies=[{"worker": {"n": n}} for n in range(2)]) as neighbour:
            for path, body in calls.items():
                content = json.dumps(body()).encode()
                with attack.attempt(path, neighbour=neighbour), attack.memory_of(target.pid):
                    answer = http.post(f"{url}/{path}", content=content, headers={"Content-Type": "application/json"})
                    assert answer.status_code < 400, answer.text[:300]
                if path == "queues/rollouts/enqueue":
                    rollout_ids += [row["rollout_id"] for row in answer.json()][:20_000]


def test_waits_beside_spans_of_unknown_attempts(attack: Attack) -> None:
    with served(STORE) as target, Neighbour(f"{target.url}/v1/agl/health") as neighbour:
        ids = Ids(target.url)
        many = [ids.span(n, ids.on_span.replace(b"at-", b"%03d" % (n % 1000))) for n in range(60_000)]
        body = packed(export(*many), 1)
        with attack.attempt("60,000 spans", neighbour=neighbour), attack.memory_of(target.pid):
            answer = httpx.post(f"{target.url}/v1/traces", content=body, headers=GZIP, timeout=300)
            assert answer.status_code < 500


def tool(**fields: object) -> dict[str, object]:
    """Return a function tool."""
    return {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}, **fields}}


def nested(depth: int, size: int) -> object:
    """Return JSON lists in lists around a long text."""
    value: object = "a" * size
    for _ in range(depth):
        value = [value]
    return value


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
CHOICES: dict[str, Any] = {"n": 128, "max_tokens": 24, "ignore_eos": True, "logprobs": True, "top_logprobs": 20}
PROPERTIES = {f"p{n}": {"type": "string"} for n in range(8000)}
MODEL_REQUESTS: dict[str, dict[str, object]] = {
    "a long part": question(LONG),
    "a long description": question(tools=[tool(description=LONG)]),
    "many properties": question(tools=[tool(parameters={"type": "object", "properties": PROPERTIES})]),
    "nested lists": question(metadata={"a": nested(90, 40_000)}),
    "chains of lists": {"model": "tiny", "messages": [nested(90, 4000)] * 700},
    "128 choices with log-probabilities": question(**CHOICES),
    "128 streamed choices with log-probabilities": question(**CHOICES, stream=True),
    "the first grammar": question(
        response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}, max_tokens=4
    ),
}


@pytest.mark.parametrize("name", MODEL_REQUESTS)
def test_waits_beside_a_completion_with(attack: Attack, name: str) -> None:
    with served(MODEL, '{"context_length": 32768, "cache_mib": 64}') as target:
        models = target.url.replace("chat/completions", "models")
        with (
            Neighbour(models) as neighbour,
            attack.attempt(name, neighbour=neighbour),
            attack.memory_of(target.pid),
        ):
            answer = httpx.post(target.url, json=MODEL_REQUESTS[name], timeout=120)
            assert answer.status_code < 500, answer.text[:300]


def test_waits_of_completions_while_128_long_answers_fill_the_cache(attack: Attack) -> None:
    """The neighbour samples one token of its own; it waits for the sampling step that is running."""
    greedy = question(n=128, max_tokens=8000, ignore_eos=True, temperature=2.0)
    short = [question(f"Say {word}.", seed=number) for number, word in enumerate(("hello", "goodbye"))]
    with (
        served(MODEL, '{"context_length": 32768, "cache_mib": 1}') as target,
        Neighbour(target.url, bodies=short) as neighbour,
        attack.attempt("128 long answers", neighbour=neighbour),
        attack.memory_of(target.pid),
    ):
        assert httpx.post(target.url, json=greedy, timeout=120).status_code == 200
