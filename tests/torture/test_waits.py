"""The longest wait of another client beside one costly request, each kind of request alone (docs/reliability.md)."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from .conftest import Attack
from .hostile_upstream import STREAM, WHOLE, HostileUpstream
from .model_server import question
from .neighbours import Neighbour, served
from .servers import CHAT, GATEWAY, PROXY, SCORES, STORE, TINKER
from .test_intake import GZIP, Ids, export, packed
from .test_intake import STORE as STORE_OF_AN_ATTEMPT

CHUNKS = 300_000
MOST_ROWS = 65_536
MODEL = """
import sys
sys.path.insert(0, "tests")
from gateway.tiny_server import tiny_server
with tiny_server(context_length=32768, cache_mib=int(sys.argv[1])) as tiny:
    print(tiny.server.endpoint, flush=True)
    sys.stdin.read()
"""
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
    with served(server) as target, Neighbour(f"{target.url}/") as neighbour:
        neighbour.forget()
        with attack.attempt(path), attack.memory_of(target.pid):
            assert not one_byte_chunks(target.url, path).startswith(b"HTTP/1.1 5")
            attack.neighbour(neighbour.longest())


def upstream_chunks(head: bytes, text: bytes) -> Callable[[], Iterator[bytes]]:
    """Return the answer of an upstream in chunks of one byte."""

    def answer() -> Iterator[bytes]:
        yield head + b"Transfer-Encoding: chunked\r\n\r\n"
        yield b"".join(b"1\r\n%c\r\n" % byte for byte in text + b" " * CHUNKS) + b"0\r\n\r\n"

    return answer


@pytest.mark.parametrize("number", [0, 1], ids=["whole", "streamed"])
def test_waits_beside_an_upstream_of_one_byte_chunks(attack: Attack, number: int) -> None:
    message = {"role": "assistant", "content": "ok"}
    whole = {"id": "c", "model": "tiny", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
    answers = [upstream_chunks(WHOLE, json.dumps(whole).encode()), upstream_chunks(STREAM, b"data: [DONE]\n\n")]
    upstream = HostileUpstream(dict(enumerate(answers)))
    try:
        with served(PROXY, upstream.url) as target, Neighbour(f"{target.url}/health") as neighbour:
            neighbour.forget()
            with attack.attempt(number), attack.memory_of(target.pid):
                body = {**CHAT, "messages": [{"role": "user", "content": str(number)}], "stream": bool(number)}
                assert httpx.post(f"{target.url}/v1/chat/completions", json=body, timeout=120).status_code != 500
                attack.neighbour(neighbour.longest())
    finally:
        upstream.stop()


def spans(attempt: dict[str, Any], count: int) -> list[dict[str, Any]]:
    """Return spans of an attempt as the store takes them."""
    names = {"rollout_id": attempt["rollout_id"], "attempt_id": attempt["attempt_id"]}
    return [
        {**names, "sequence_id": n, "trace_id": "1", "span_id": f"{n:x}", "name": "call", "attributes": {"n": n}}
        for n in range(1, count + 1)
    ]


def test_waits_beside_long_requests_to_a_store(attack: Attack, tmp_path: Path) -> None:
    """The neighbour writes heartbeats: each is a transaction that has to come between the parts of a long one."""
    with served(STORE_OF_AN_ATTEMPT, str(tmp_path / "store.db")) as target, httpx.Client(timeout=300) as http:
        ids = Ids(target.url)
        url = f"{ids.url}/v1/agl"
        attempt = http.get(f"{url}/rollouts").json()["items"][0]["attempt"]
        rows: list[str] = []
        calls: dict[str, Callable[[], Any]] = {
            "queues/rollouts/enqueue": lambda: {"rollouts": [{"input": {"a": n}} for n in range(MOST_ROWS)]},
            "queues/rollouts/dequeue": lambda: {"limit": 50_000},
            "spans/batch": lambda: {"spans": spans(attempt, 20_000)},
            "spans/search": lambda: {"rollout_id": attempt["rollout_id"], "limit": -1},
            "rollouts/search": lambda: {"limit": -1},
            "rollouts/delete": lambda: {"rollout_ids": rows},
        }
        with Neighbour(f"{url}/heartbeats", bodies=[{"worker": {"n": n}} for n in range(2)]) as neighbour:
            for path, body in calls.items():
                content = json.dumps(body()).encode()
                neighbour.forget()
                with attack.attempt(path), attack.memory_of(target.pid):
                    answer = http.post(f"{url}/{path}", content=content, headers={"Content-Type": "application/json"})
                    assert answer.status_code < 400, answer.text[:300]
                    attack.neighbour(neighbour.longest())
                if path == "queues/rollouts/enqueue":
                    rows += [row["rollout_id"] for row in answer.json()][:20_000]


def test_waits_beside_spans_of_unknown_attempts(attack: Attack) -> None:
    with served(STORE_OF_AN_ATTEMPT) as target, httpx.Client(timeout=300) as http:
        ids = Ids(target.url)
        known = ids.on_span
        many = [ids.span(n, known.replace(b"at-", b"%03d" % (n % 1000))) for n in range(60_000)]
        body = packed(export(*many), 1)
        with Neighbour(f"{ids.url}/v1/agl/health") as neighbour:
            neighbour.forget()
            with attack.attempt("60,000 spans"), attack.memory_of(target.pid):
                assert http.post(f"{ids.url}/v1/traces", content=body, headers=GZIP).status_code < 500
                attack.neighbour(neighbour.longest())


def tool(**fields: object) -> dict[str, object]:
    """Return a function tool."""
    return {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}, **fields}}


def nested(depth: int, size: int) -> object:
    """Return JSON lists in lists around a long text."""
    value: object = "a" * size
    for _ in range(depth):
        value = [value]
    return value


MODEL_REQUESTS: dict[str, dict[str, object]] = {
    "a long part": question(LONG),
    "a long description": question(tools=[tool(description=LONG)]),
    "many properties": question(
        tools=[
            tool(parameters={"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(8000)}}),
        ]
    ),
    "nested lists": question(metadata={"a": nested(90, 40_000)}),
    "chains of lists": {"model": "tiny", "messages": [nested(90, 4000)] * 700},
    "128 choices with log-probabilities": question(
        n=128, max_tokens=24, ignore_eos=True, logprobs=True, top_logprobs=20
    ),
    "128 streamed choices with log-probabilities": question(
        n=128, max_tokens=24, ignore_eos=True, logprobs=True, top_logprobs=20, stream=True
    ),
    "the first grammar": question(
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "s", "schema": {"type": "object", "properties": {"a": {"type": "integer"}}}},
        },
        max_tokens=4,
    ),
}


@pytest.mark.parametrize("name", MODEL_REQUESTS)
def test_waits_beside_a_completion_with(attack: Attack, name: str) -> None:
    with served(MODEL, "64") as target, Neighbour(f"{target.url}/models") as neighbour:
        neighbour.forget()
        with attack.attempt(name), attack.memory_of(target.pid):
            answer = httpx.post(f"{target.url}/chat/completions", json=MODEL_REQUESTS[name], timeout=120)
            assert answer.status_code < 500, answer.text[:300]
            attack.neighbour(neighbour.longest())


def test_waits_of_completions_while_128_long_answers_fill_the_cache(attack: Attack) -> None:
    """The neighbour samples one token of its own; it waits for the sampling step that is running."""
    greedy = question(n=128, max_tokens=8000, ignore_eos=True, temperature=2.0)
    with served(MODEL, "1") as target:
        url = f"{target.url}/chat/completions"
        asked = [question(f"Say {word}.", seed=number) for number, word in enumerate(("hello", "goodbye"))]
        with Neighbour(url, bodies=asked) as neighbour:
            neighbour.forget()
            with attack.attempt("128 long answers"), attack.memory_of(target.pid):
                assert httpx.post(url, json=greedy, timeout=120).status_code == 200
                attack.neighbour(neighbour.longest())
