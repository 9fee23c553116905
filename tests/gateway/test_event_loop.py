"""The event loop is free for others while a large request is rendered, or a large answer built."""

from __future__ import annotations

import asyncio
import gc
import json
import time

import httpx
import pytest

from .tiny_server import tiny_server

TEXT = " ".join(f"{number:x} apples" for number in range(40_000))
"""More than the context holds, so that it is rendered and then refused."""


@pytest.fixture(scope="module")
def tiny():
    with tiny_server(context_length=32_768, cache_mib=64) as server:
        httpx.post(f"{server.server.endpoint}/chat/completions", json={**asked("hi"), "max_tokens": 1})
        yield server


def asked(content, **more):
    return {"model": "tiny", "messages": [{"role": "user", "content": content}], **more}


def tool_with_values(*values):
    parameters = {"type": "object", "properties": {"a": {"type": "string", "enum": list(values)}}}
    return [{"type": "function", "function": {"name": "f", "parameters": parameters}}]


def called(arguments):
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": json.dumps(arguments)}}
    said = [{"role": "assistant", "content": None, "tool_calls": [call]}]
    return [*asked("?")["messages"], *said, {"role": "tool", "tool_call_id": "call_1", "content": "1"}]


def share_of_longest_turn(tiny, path, body):
    """The longest time that the server's event loop took for one turn, as a share of the request's time; its answer."""
    turns = [0.0]

    async def watch():
        while True:
            before = time.perf_counter()
            await asyncio.sleep(0.002)
            turns.append(time.perf_counter() - before)

    gc.collect()
    gc.disable()  # a look through all libraries is no part of the request
    try:
        watching = asyncio.run_coroutine_threadsafe(watch(), tiny.sampler.loop)
        began = time.perf_counter()
        answer = httpx.post(f"{tiny.server.endpoint}{path}", json=body, timeout=120)
        seconds = time.perf_counter() - began
        watching.cancel()
    finally:
        gc.enable()
    return max(turns) / seconds, answer


@pytest.mark.parametrize(
    "body",
    [
        asked(TEXT),
        asked("hi", tools=tool_with_values(*TEXT.split(" ")[::4], TEXT[:300_000])),
        asked("hi", messages=called({"a": TEXT})),
    ],
    ids=["text", "values", "arguments"],
)
def test_others_get_their_turn_while_a_large_request_is_rendered(tiny, body):
    share, answer = share_of_longest_turn(tiny, "/chat/completions", body)
    assert answer.json()["error"]["code"] == "context_length_exceeded"
    assert share < 0.5


@pytest.mark.parametrize("stream", [False, True])
def test_others_get_their_turn_while_a_large_answer_is_built(tiny, stream):
    many = {"n": 128, "max_tokens": 24, "ignore_eos": True, "logprobs": True, "top_logprobs": 20, "stream": stream}
    share, answer = share_of_longest_turn(tiny, "/chat/completions", asked("hi", **many))
    if not stream:
        choices = answer.json()["choices"]
        assert [choice["index"] for choice in choices] == list(range(128))
    assert share < 0.2
