"""What is kept under one API key, asked for with another."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from .conftest import Attack
from .hostile_upstream import STREAM, WHOLE, HostileUpstream, chunk, event
from .neighbours import served

PROXY = """
import asyncio, sys
from mini_agentic_rl import InMemoryLightningStore, LLMProxy

async def main():
    store = InMemoryLightningStore()
    models = [{"model_name": "m", "base_url": sys.argv[1]}]
    proxy = LLMProxy(model_list=models, store=store, api_keys=["alice-key", "bob-key"])
    await proxy.start()
    claimed = await store.start_rollout("task")
    root = proxy.endpoint.removesuffix("/v1")
    print(root, f"/rollout/{claimed.rollout_id}/attempt/{claimed.attempt.attempt_id}", flush=True)
    await asyncio.to_thread(sys.stdin.read)

asyncio.run(main())
"""
SECRET = "the colour of the vault is ochre"
SAID = b'{"id": "same-for-all", "choices": [{"index": 0, "message": {"role": "assistant", "content": "noted"}}]}'


@pytest.fixture(scope="module")
def proxy() -> Iterator[tuple[str, str]]:
    streamed = [STREAM + b"\r\n", event({**chunk(content="noted"), "id": "same-for-all"}), b"data: [DONE]\n\n"]
    upstream = HostileUpstream({0: lambda: iter([WHOLE + b"\r\n" + SAID]), 1: lambda: iter(streamed)})
    with served(PROXY, upstream.url) as server:
        root, scope = server.url.split(" ")
        yield root, scope
    upstream.stop()


def headers(key: str, draw: random.Random) -> dict[str, str]:
    return draw.choice([{"authorization": f"Bearer {key}"}, {"x-api-key": key}])


def test_responses_across_keys(attack: Attack, proxy: tuple[str, str]) -> None:
    draw = random.Random(11)
    root, scope = proxy
    with httpx.Client(timeout=60) as http:
        for number in range(attack.times(200)):
            base = root + draw.choice(["", scope]) + "/v1/responses"
            mine, other = draw.choice([("alice-key", "bob-key"), ("bob-key", "alice-key")])
            stream = draw.random() < 0.5
            body: dict[str, Any] = {"model": "m", "instructions": SECRET, "metadata": {"of": f"{mine} {number}"}}
            asked = body | {
                "stream": stream,
                "input": [{"role": "user", "content": SECRET}, {"role": "user", "content": str(int(stream))}],
            }
            with attack.attempt((number, mine, stream), limit_s=30):
                given = http.post(base, json=asked, headers=headers(mine, draw))
                assert given.status_code == 200, given.text
                found = http.get(f"{base}/resp_same-for-all", headers=headers(mine, draw))
                assert found.json()["metadata"] == body["metadata"]
                tries = [
                    http.get(f"{base}/resp_same-for-all", headers=headers(other, draw)),
                    http.delete(f"{base}/resp_same-for-all", headers=headers(other, draw)),
                    http.get(f"{base}/resp_same-for-all"),
                    http.post(
                        base,
                        headers=headers(other, draw),
                        json={"model": "m", "input": "0", "previous_response_id": "resp_same-for-all"},
                    ),
                ]
                assert [one.status_code for one in tries] == [404, 404, 401, 400], [one.text for one in tries]
                assert not any(SECRET in one.text for one in tries)
                assert http.get(f"{base}/resp_same-for-all", headers=headers(mine, draw)).json() == found.json()
                gone = http.delete(f"{base}/resp_same-for-all", headers=headers(mine, draw))
                assert gone.json()["deleted"] is True
