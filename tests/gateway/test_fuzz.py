"""Random and mutated requests in all dialects against a real policy: whatever is sent, no answer is a fault of the
server's, none is missing, and afterwards the server is as it was.

`GATEWAY_FUZZ_REQUESTS=10000` sends so many (300 by default), `GATEWAY_FUZZ_SEED=7` other ones.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter

import httpx

from mini_agentic_rl.gateway.dialects import shared_dialects
from mini_agentic_rl.store import InMemoryLightningStore

from .request_fuzzer import FuzzedRequest, RequestFuzzer
from .tiny_server import tiny_server

REQUESTS = int(os.environ.get("GATEWAY_FUZZ_REQUESTS", "300"))
SEED = int(os.environ.get("GATEWAY_FUZZ_SEED", "0"))
CLIENTS = 16
STUCK_SECONDS = 120.0
FAULTS = (b'"server_error"', b'"api_error"', b"the server failed to answer")


async def _send(client: httpx.AsyncClient, request: FuzzedRequest) -> str:
    """What became of it: a status, `left`, or a description of what went wrong."""
    asked = client.post(request.path, content=request.content, headers={"content-type": "application/json"})
    try:
        answer = await asyncio.wait_for(asked, STUCK_SECONDS if request.leaves_after is None else request.leaves_after)
    except asyncio.TimeoutError:
        return "stuck" if request.leaves_after is None else "left"
    fault = answer.status_code >= 500 or any(mark in answer.content for mark in FAULTS)
    return f"fault: {answer.text[:500]}" if fault else str(answer.status_code)


async def _send_all(root: str, fuzzer: RequestFuzzer, count: int) -> tuple[Counter[str], list[str]]:
    """How many ended how, and what went wrong."""
    ends: Counter[str] = Counter()
    wrong: list[str] = []
    left = iter(range(count))

    async def ask(client: httpx.AsyncClient) -> None:
        for _ in left:
            request = fuzzer.next()
            end = await _send(client, request)
            ends[end.partition(":")[0]] += 1
            if end.startswith(("fault", "stuck")):
                wrong.append(f"{request.path} {request.content[:2000]!r}: {end}")

    async with httpx.AsyncClient(base_url=root, timeout=None) as client:
        await asyncio.gather(*(ask(client) for _ in range(CLIENTS)))
    return ends, wrong


async def test_no_request_harms_the_server():
    store = InMemoryLightningStore()
    rollouts = [await store.start_rollout({"n": n}) for n in range(4)]
    prefixes = [f"/rollout/{r.rollout_id}/attempt/{r.attempt.attempt_id}" for r in rollouts]
    prefixes += ["", "", "/rollout/nobody/attempt/never"]
    with tiny_server(store=store) as tiny:
        fuzzer = RequestFuzzer([dialect.path for dialect in shared_dialects()], prefixes, SEED)
        root = tiny.server.endpoint.removesuffix("/v1")
        ends, wrong = await _send_all(root, fuzzer, REQUESTS)
        print(f"\n{REQUESTS} requests: {dict(ends)}")
        assert not wrong, f"{len(wrong)} of {REQUESTS}; the first: {wrong[0]}"
        assert ends["200"] > REQUESTS // 10
        assert ends["400"] > REQUESTS // 10
        await asyncio.to_thread(tiny.wait_for_rest)
        answer = httpx.post(
            f"{root}/v1/chat/completions", json={"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
        )
        assert answer.status_code == 200
