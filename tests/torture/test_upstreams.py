"""Upstreams of `LLMProxy` that are broken or hostile, in every dialect: the proxy answers each, and stays."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import httpx
import pytest

from .conftest import Attack
from .hostile_upstream import STREAM as STREAM_HEAD
from .hostile_upstream import Answer, HostileUpstream, chunk, event, giants, malformed
from .neighbours import Neighbour, Served, served
from .servers import RECORDING_PROXY

GIANTS = giants()
FIRST_GIANT = 1_000_000
HONEST = -1
TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}


@pytest.fixture(scope="module")
def proxy() -> Iterator[Served]:
    def answer(number: int) -> Answer:
        if number == HONEST:
            return lambda: iter([STREAM_HEAD, b"\r\n", event(chunk(content="all is well")), b"data: [DONE]\n\n"])
        return GIANTS[number - FIRST_GIANT][2] if number >= FIRST_GIANT else malformed(number)[1]

    with HostileUpstream(answer) as upstream, served(RECORDING_PROXY, upstream.url) as server:
        yield server


def ask(http: httpx.Client, proxy: Served, dialect: int, number: int, stream: bool) -> tuple[int, str]:
    """Ask in one of the dialects, recorded or not; return the status and the end of the answer."""
    root, attempt = proxy.url.split()
    messages = [{"role": "user", "content": str(number)}]
    path, fields = (
        ("/v1/chat/completions", {"messages": messages, "tools": [TOOL]}),
        ("/v1/responses", {"input": messages, "include": ["message.output_text.logprobs"]}),
        ("/v1/messages", {"messages": messages, "max_tokens": 9}),
        ("/v1/chat/completions", {"messages": messages, "functions": [TOOL["function"]]}),
    )[dialect % 4]
    scope = attempt if dialect % 8 < 4 else ""
    with http.stream("POST", root + scope + path, json={"model": "tiny", "stream": stream, **fields}) as answer:
        end = b""
        for piece in answer.iter_bytes():
            end = (end + piece)[-20_000:]
        return answer.status_code, end.decode("utf-8", "replace")


def attack_with(attack: Attack, proxy: Served, tries: Iterable[tuple[object, int, int, bool]], limit_s: float) -> None:
    """Ask for answers: what is tried, the dialect, the answer's number, and whether it streams."""
    root = proxy.url.split()[0]
    with (
        Neighbour(f"{root}/health") as neighbour,
        httpx.Client(timeout=600) as http,
        attack.memory_of(proxy.pid),
    ):
        for what, dialect, number, stream in tries:
            with attack.attempt(what, limit_s=limit_s, neighbour=neighbour):
                status, text = ask(http, proxy, dialect, number, stream)
                assert status in (200, 400, 401, 404, 413, 418, 422, 499, 502, 503, 504, 599), (status, text[:300])
                assert "its log says why" not in text, text[-500:]
                assert "hunter2" not in text, text[-500:]
        status, text = ask(http, proxy, 0, HONEST, True)
        assert (status, "all is well" in text) == (200, True)
        assert "hunter2" not in http.get(f"{root}/metrics").text


def test_malformed_upstream_streams(attack: Attack, proxy: Served) -> None:
    tries = ((seed, seed, seed, malformed(seed)[0]) for seed in range(attack.times(1000)))
    attack_with(attack, proxy, tries, limit_s=60)


def test_upstream_answers_without_an_end(attack: Attack, proxy: Served) -> None:
    tries = []
    for number in range(attack.times(4 * len(GIANTS))):
        (name, stream, _), dialect = GIANTS[number % len(GIANTS)], number + number // len(GIANTS)
        tries.append(((name, dialect % 8), dialect, FIRST_GIANT + number % len(GIANTS), stream))
    attack_with(attack, proxy, tries, limit_s=300)
