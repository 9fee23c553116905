"""Many clients and large requests on one server: the others are served in time, and nothing is left behind."""

from __future__ import annotations

import asyncio
import gc
import json
import random
import time
from urllib.parse import urlsplit

import httpx
import psutil
import pytest

from mini_agentic_rl.policy.machine import release_free_memory

from .samples import QUESTION
from .tiny_server import tiny_server

CLIENTS = 60
MIB = 2**20
TEXT = " ".join(f"{number:x} apples" for number in range(40_000))
"""More than the context holds, so that it is rendered and then refused."""


async def _stream(port: int, number: int, leaves_after: float | None) -> bytes:
    """Return what one client got until it hung up, or until the end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    messages = [{"role": "user", "content": f"Question {number}?"}]
    body = {"model": "tiny", "messages": messages, "stream": True, "max_tokens": 30, "ignore_eos": True}
    content = json.dumps(body).encode()
    writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(content) + content
    )
    try:
        return await asyncio.wait_for(reader.read(), leaves_after)
    except asyncio.TimeoutError:
        return b""
    finally:
        writer.close()


async def _round(port: int, seed: int) -> list[bytes]:
    """Return the answers to the clients that stay; every other one leaves at a random time."""
    choose = random.Random(seed)
    leaving = [choose.uniform(0.0, 0.5) if number % 2 else None for number in range(CLIENTS)]
    answers = await asyncio.gather(*(_stream(port, number, leaves) for number, leaves in enumerate(leaving)))
    return [answer for answer, leaves in zip(answers, leaving, strict=True) if leaves is None]


async def test_clients_that_stay_are_served_and_nothing_is_left_of_those_that_leave():
    with tiny_server() as tiny:
        port = urlsplit(tiny.server.endpoint).port
        for seed in (0, 1):
            if seed == 1:  # the first round takes memory for the most requests at once
                tasks, memory = tiny.tasks(), psutil.Process().memory_info().rss
            stayed = await _round(port, seed)
            assert len(stayed) == CLIENTS // 2
            for answer in stayed:
                assert answer.startswith(b"HTTP/1.1 200")
                assert b"data: [DONE]" in answer
                assert answer.count(b'"finish_reason":"length"') == 1
            await asyncio.to_thread(tiny.wait_for_rest)
        counters = tiny.server.service.counters
        assert counters.failed == 0
        assert counters.cancelled > 0
        assert counters.completed + counters.cancelled == counters.requests
        assert tiny.tasks() <= tasks + 1
        gc.collect()
        release_free_memory()
        assert psutil.Process().memory_info().rss < memory + 64 * MIB


@pytest.fixture(scope="module")
def tiny():
    with tiny_server(context_length=32_768, cache_mib=64) as server:
        body = {"model": "tiny", "messages": QUESTION, "max_tokens": 1}
        httpx.post(f"{server.server.endpoint}/chat/completions", json=body)
        yield server


def share_of_longest_turn(tiny, **body):
    """Return the longest turn of the server's event loop as a share of the request's time, and the answer."""
    turns = [0.0]

    async def watch():
        while True:
            before = time.perf_counter()
            await asyncio.sleep(0.002)
            turns.append(time.perf_counter() - before)

    gc.collect()
    gc.disable()  # a collection over all libraries is no part of the request
    try:
        watching = asyncio.run_coroutine_threadsafe(watch(), tiny.sampler.loop)
        began = time.perf_counter()
        body = {"model": "tiny", "messages": QUESTION, **body}
        answer = httpx.post(f"{tiny.server.endpoint}/chat/completions", json=body, timeout=120)
        seconds = time.perf_counter() - began
        watching.cancel()
    finally:
        gc.enable()
    return max(turns) / seconds, answer.json()


def test_the_event_loop_runs_while_a_large_request_is_rendered_and_a_large_answer_is_built(tiny):
    values = [*TEXT.split(" ")[::4], TEXT[:300_000]]
    parameters = {"type": "object", "properties": {"a": {"type": "string", "enum": values}}}
    for body in (
        {"messages": [{"role": "user", "content": TEXT}]},
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": parameters}}]},
    ):
        share, answer = share_of_longest_turn(tiny, **body)
        assert answer["error"]["code"] == "context_length_exceeded"
        assert share < 0.5
    many = {"n": 128, "max_tokens": 24, "ignore_eos": True, "logprobs": True, "top_logprobs": 20}
    share, answer = share_of_longest_turn(tiny, **many)
    assert [choice["index"] for choice in answer["choices"]] == list(range(128))
    assert share < 0.2
