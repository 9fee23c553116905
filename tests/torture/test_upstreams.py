"""Upstreams of `LLMProxy` that are broken or hostile, in every dialect: the proxy answers each, and stays."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from .conftest import Attack
from .hostile_upstream import STREAM as STREAM_HEAD
from .hostile_upstream import HostileUpstream, chunk, event, giants, malformed
from .neighbours import Neighbour, Served, served

PROXY = """
import asyncio, sys
from mini_agentic_rl import InMemoryLightningStore, LLMProxy
from mini_agentic_rl.gateway import GatewayLimits

async def main():
    store = InMemoryLightningStore()
    models = [{"model_name": "m", "base_url": sys.argv[1], "token_ids": "vllm", "timeout": 60}]
    proxy = LLMProxy(model_list=models, store=store, num_retries=0)
    await proxy.start()
    claimed = await store.start_rollout("task")
    root = proxy.endpoint.removesuffix("/v1")
    print(root, f"/rollout/{claimed.rollout_id}/attempt/{claimed.attempt.attempt_id}", flush=True)
    await asyncio.to_thread(sys.stdin.read)

asyncio.run(main())
"""
ONE_GIB = 1024.0
GIANTS = giants()
FIRST_GIANT = 1_000_000
HONEST = -1
TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}


class Proxy:
    """The proxy in its process, and the upstream behind it."""

    def __init__(self, server: Served) -> None:
        self.root, self.scope = server.url.split(" ")
        self.pid = server.pid
        self.health = f"{self.root}/health"

    def ask(self, http: httpx.Client, dialect: int, number: int, stream: bool) -> tuple[int, str]:
        """Ask in one of the dialects, recorded or not; return the status and the whole answer."""
        told: list[Any] = [{"role": "user", "content": str(number)}]
        asked: dict[str, Any] = {"model": "m", "stream": stream}
        path, asked = (
            ("/v1/chat/completions", asked | {"messages": told, "tools": [TOOL]}),
            ("/v1/responses", asked | {"input": told, "include": ["message.output_text.logprobs"]}),
            ("/v1/messages", asked | {"messages": told, "max_tokens": 9}),
            ("/v1/chat/completions", asked | {"messages": told, "functions": [TOOL["function"]]}),
        )[dialect % 4]
        scope = self.scope if dialect % 8 < 4 else ""
        with http.stream("POST", self.root + scope + path, json=asked) as answer:
            kept, size = b"", 0
            for piece in answer.iter_bytes():
                size += len(piece)
                kept = (kept + piece)[-20_000:]
            return answer.status_code, kept.decode("utf-8", "replace")


@pytest.fixture(scope="module")
def proxy() -> Iterator[Proxy]:
    answers = {seed: malformed(seed)[1] for seed in range(20_000)}
    answers |= {FIRST_GIANT + n: answer for n, (_, _, answer) in enumerate(GIANTS)}
    answers[HONEST] = lambda: iter([STREAM_HEAD + b"\r\n", event(chunk(content="all is well")), b"data: [DONE]\n\n"])
    upstream = HostileUpstream(answers)
    with served(PROXY, upstream.url) as server:
        yield Proxy(server)
    upstream.stop()


def checked(status: int, text: str) -> None:
    assert status in (200, 400, 401, 404, 413, 418, 422, 499, 502, 503, 504, 599), (status, text[:300])
    assert "its log says why" not in text, text[-500:]
    assert "hunter2" not in text, text[-500:]


def test_malformed_upstream_streams(attack: Attack, proxy: Proxy) -> None:
    with Neighbour(proxy.health) as neighbour, httpx.Client(timeout=100) as http, attack.memory_of(proxy.pid):
        for seed in range(attack.times(1000)):
            with attack.attempt(seed, limit_s=60):
                checked(*proxy.ask(http, seed, seed, malformed(seed)[0]))
            attack.neighbour(neighbour.longest())
        status, text = proxy.ask(http, 0, HONEST, True)
        assert (status, "all is well" in text) == (200, True)


def test_upstream_answers_without_an_end(attack: Attack, proxy: Proxy) -> None:
    with Neighbour(proxy.health) as neighbour, httpx.Client(timeout=600) as http:
        for number in range(attack.times(4 * len(GIANTS))):
            name, stream, _ = GIANTS[number % len(GIANTS)]
            neighbour.longest()
            dialect = number + number // len(GIANTS)
            with attack.attempt((name, dialect % 8), limit_s=300), attack.memory_of(proxy.pid):
                checked(*proxy.ask(http, dialect, FIRST_GIANT + number % len(GIANTS), stream))
                attack.neighbour(neighbour.longest())
        status, text = proxy.ask(http, 0, HONEST, True)
        assert (status, "all is well" in text) == (200, True)
        said = http.get(f"{proxy.root}/metrics").text
    assert "hunter2" not in said
    assert attack.row.peak_mib is not None
    assert attack.row.peak_mib < ONE_GIB
