"""Answers of upstreams that are too large, numbered out of all bounds, or none at all."""

from __future__ import annotations

import asyncio
import gzip
import itertools
import json

import httpx
import pytest
from starlette.responses import JSONResponse, Response

from mini_agentic_rl.gateway.dialects.reader import ChatReader, Room
from mini_agentic_rl.gateway.proxy import call as proxied

from .fake_upstream import chunk, completion

BODY = {"model": "policy", "messages": [{"role": "user", "content": "?"}]}


def call(index: object) -> dict:
    return chunk(choice={"delta": {"tool_calls": [{"index": index, "function": {"name": "f", "arguments": "{}"}}]}})


async def test_errors_within_a_stream_end_it_as_an_error_in_every_dialect(upstream, proxying):
    left: list = []
    server = upstream(lambda body: left.pop())
    proxy = await proxying({"base_url": server.url})
    asked = {**BODY, "stream": True, "input": "?", "max_tokens": 5}
    for path in ("chat/completions", "responses", "messages"):
        left[:] = [[chunk("begun"), {"error": {"message": "out of memory"}}], [call(10**9)]]
        text = httpx.post(f"{proxy.endpoint}/{path}", json=asked).text
        assert "'1000000000' among its tool calls: expected 0 to 127" in text
        text = httpx.post(f"{proxy.endpoint}/{path}", json=asked).text
        assert f"{server.url} ended its answer with an error: out of memory" in text


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"choices": [{"index": 10**18}]}, "among its choices"),
        ({"choices": [{"index": -1}]}, "among its choices"),
        ({"choices": [{"index": 0, "token_ids": [2**40]}]}, "is not a token id"),
        ({"choices": [{"index": 0, "token_ids": [float("inf")]}]}, "is not a token id"),
        ({"choices": [{"index": 0, "logprobs": {"content": [{"logprob": float("nan")}]}}]}, "not a log-probability"),
        ({"choices": [{"index": 0, "message": {"tool_calls": [{}] * 200}}]}, "among its tool calls"),
        ({"sglext": {"output_ids": [[1]] * 200}}, "among its choices"),
    ],
)
def test_what_is_beyond_a_bound_is_said(part, message):
    with pytest.raises(ValueError, match=message):
        ChatReader().take(part)


def test_all_that_is_kept_of_an_answer_is_bounded():
    for what, part in {
        "characters": chunk("some text"),
        "tokens": {"choices": [{"token_ids": [1, 2, 3]}]},
        "logprobs": {"choices": [{"logprobs": {"content": [{"logprob": 0}] * 3}}]},
    }.items():
        room = Room(**{what: 2})
        with pytest.raises(ValueError, match=f"too many {what}"):
            ChatReader(room=room).take(part)


def test_counts_of_tokens_that_are_none_count_nothing():
    answer = ChatReader()
    answer.take({"usage": {"prompt_tokens": -5, "completion_tokens": 10**30, "prompt_tokens_details": [1]}})
    assert (answer.prompt_tokens, answer.cached_tokens, answer.completion_tokens) == (0, 0, 0)


async def test_a_bomb_of_gzip_is_refused(upstream, proxying, monkeypatch):
    monkeypatch.setattr(proxied, "MAX_BYTES", 100_000)
    bomb = Response(gzip.compress(b" " * 200_000), headers={"Content-Encoding": "gzip"})
    proxy = await proxying({"base_url": upstream(lambda body: bomb).url})
    answer = httpx.post(f"{proxy.endpoint}/chat/completions", json=BODY)
    assert (answer.status_code, "decompresses to more than 100000 bytes" in answer.text) == (502, True)


async def test_a_line_separator_within_a_text_does_not_end_its_event(upstream, proxying):
    body = "data: " + '{"choices": [{"index": 0, "delta": {"content": "a\u2028b"}}]}' + "\r\n\r\ndata: [DONE]\r\n\r\n"
    proxy = await proxying({"base_url": upstream(lambda _: Response(body, media_type="text/event-stream")).url})
    answer = httpx.post(f"{proxy.endpoint}/chat/completions", json=BODY | {"stream": True}).content.decode()
    assert "a\u2028b" in answer


async def test_a_stream_without_any_answer_is_an_error(upstream, proxying):
    proxy = await proxying({"base_url": upstream(lambda body: Response("<html>", media_type="text/html")).url})
    answer = httpx.post(f"{proxy.endpoint}/chat/completions", json=BODY | {"stream": True}).text
    assert "a stream in which there was no answer" in answer


async def test_the_password_in_a_url_is_sent_and_never_told(upstream, proxying, caplog):
    server = upstream(lambda body: Response("no", 401))
    url = server.url.replace("://", "://me:hunter2@")
    proxy = await proxying({"base_url": url}, {"base_url": "http://me:hunter2@127.0.0.1:1/v1", "model_name": "away"})
    with caplog.at_level("INFO"):
        refused = httpx.post(f"{proxy.endpoint}/chat/completions", json=BODY).text
        away = httpx.post(f"{proxy.endpoint}/chat/completions", json=BODY | {"model": "away"}).text
    assert server.headers[-1]["authorization"] == "Basic bWU6aHVudGVyMg=="
    metrics = httpx.get(proxy.endpoint.removesuffix("/v1") + "/metrics").text
    for answer in (refused, away, metrics):
        assert "***@127.0.0.1" in answer
        assert "hunter2" not in answer
    assert "hunter2" not in caplog.text
    assert "hunter2" not in repr(proxy._upstreams.servers)


class _OneByteEach(httpx.AsyncByteStream):
    """An answer that has all come already, in chunks of one byte."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    async def __aiter__(self):
        for byte in self._content:
            yield bytes([byte])


@pytest.mark.parametrize("kind", ["whole", "packed", "events", "comments"])
async def test_others_get_their_turn_while_an_answer_of_one_byte_chunks_is_read(kind):
    value = completion("x" * 20_000)
    whole = json.dumps(value).encode()
    content = {
        "whole": whole,
        "packed": gzip.compress(whole, 0),
        "events": b"data: %b\n\n" % whole,
        "comments": b":\n" * 10_000 + b"data: %b\n\n" % whole,
    }[kind]
    headers = {"content-encoding": "gzip"} if kind == "packed" else {}
    answer = httpx.Response(200, headers=headers, stream=_OneByteEach(content))
    turns = 0

    async def neighbour():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(neighbour())
    if kind in ("whole", "packed"):
        assert await proxied.read_whole(answer) == value
    else:
        assert [event async for event in proxied.read_events(answer)] == [value]
    other.cancel()
    assert turns > len(content) / 100


KEY = "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789"


def _as_error(text: str, status: int) -> Response:
    return JSONResponse({"error": {"message": text, "type": text, "code": text, "param": text}}, status)


def _echoes(status: int) -> list:
    return [
        lambda text: _as_error(text, status),
        lambda text: Response(f"<pre>Authorization: Bearer {text}</pre>", status),
        lambda text: JSONResponse({"detail": {"headers": {"authorization": text}}}, status),
        lambda text: Response("no", status, headers={"Retry-After": text}),
    ]


@pytest.mark.parametrize(
    "echo",
    [
        *[echo for status in (400, 401) for echo in _echoes(status)],
        lambda text: [{"error": {"message": f"bad key {text}"}}],
        lambda text: [chunk("begun"), {"error": f"bad key {text}"}],
        lambda text: JSONResponse({"error": {"message": f"bad key {text}"}}),
        lambda text: JSONResponse({"choices": [{"index": text}]}),
        lambda text: JSONResponse({"choices": [{"token_ids": [text]}]}),
        lambda text: Response("{}", headers={"Content-Encoding": text}),
        lambda text: Response(text),
    ],
)
async def test_an_upstream_that_echoes_its_key_does_not_tell_it_to_agents(upstream, proxying, echo, caplog):
    server = upstream(lambda body: echo(body["user"]))
    proxy = await proxying({"base_url": server.url, "api_key": KEY}, num_retries=0)
    for part, stream in itertools.product([KEY[-16:], f"x{KEY}y"], [False, True]):
        answer = httpx.post(f"{proxy.endpoint}/chat/completions", json={**BODY, "stream": stream, "user": part})
        shown = answer.text + str(answer.headers) + caplog.text
        assert answer.status_code >= 400 or "error" in answer.text
        assert not any(KEY[at : at + 8] in shown for at in range(len(KEY) - 7))
