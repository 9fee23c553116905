"""Answers of upstreams that are too large, numbered out of all bounds, or none at all."""

from __future__ import annotations

import gzip

import httpx
import pytest
from starlette.responses import Response

from mini_agentic_rl.gateway.proxy import answer, reading
from mini_agentic_rl.gateway.proxy.answer import UpstreamAnswer

from .fake_upstream import chunk, completion

BODY = {"model": "policy", "messages": [{"role": "user", "content": "?"}]}


def call(index: object) -> dict:
    return chunk(choice={"delta": {"tool_calls": [{"index": index, "function": {"name": "f", "arguments": "{}"}}]}})


@pytest.mark.parametrize("path", ["/chat/completions", "/responses", "/messages"])
async def test_a_tool_call_of_a_huge_index_breaks_the_answer_and_not_the_proxy(upstream, proxying, path):
    proxy = await proxying({"base_url": upstream(lambda body: [call(10**9)]).url})
    asked = {"model": "policy", "stream": True, "input": "?", "messages": BODY["messages"], "max_tokens": 5}
    told = httpx.post(f"{proxy.endpoint}{path}", json=asked).text
    assert "'1000000000' among its tool calls: expected 0 to 127" in told
    assert httpx.get(f"{proxy.endpoint}/models").status_code == 200


@pytest.mark.parametrize(
    ("part", "told"),
    [
        ({"choices": [{"index": 10**18}]}, "among its choices"),
        ({"choices": [{"index": -1}]}, "among its choices"),
        ({"choices": [{"index": 0, "token_ids": [2**40]}]}, "is no token id"),
        ({"choices": [{"index": 0, "token_ids": [float("inf")]}]}, "is no token id"),
        ({"choices": [{"index": 0, "logprobs": {"content": [{"logprob": float("nan")}]}}]}, "no log-probability"),
        ({"choices": [{"index": 0, "delta": {f"k{n}": 1 for n in range(100)}}]}, "more than 64 fields"),
        ({"choices": [{"index": 0, "message": {"tool_calls": [{}] * 200}}]}, "more than 128 tool calls"),
        ({"sglext": {"output_ids": [[1]] * 200}}, "among its choices"),
    ],
)
def test_what_is_beyond_a_bound_is_said(part, told):
    with pytest.raises(ValueError, match=told):
        UpstreamAnswer().take(part)


def test_all_that_is_kept_of_an_answer_is_bounded(monkeypatch):
    monkeypatch.setattr(answer, "MOST_CHARACTERS", 0)
    for what, part in {
        "characters": chunk("some text"),
        "tokens": {"choices": [{"token_ids": [1, 2, 3]}]},
        "weight": {"choices": [{"delta": {"extra": [1]}}]},
    }.items():
        room = answer._Room(**{what: 2})
        with pytest.raises(ValueError, match=f"too many {what}"):
            UpstreamAnswer(_room=room).take(part, weight=3)


def test_counts_of_tokens_that_are_none_count_nothing():
    told = UpstreamAnswer()
    told.take({"usage": {"prompt_tokens": -5, "completion_tokens": 10**30, "prompt_tokens_details": [1]}})
    assert told.tokens == (0, 0, 0)


async def test_a_bomb_of_gzip_is_refused(upstream, proxying, monkeypatch):
    monkeypatch.setattr(reading, "MOST_BYTES", 100_000)
    bomb = Response(gzip.compress(b" " * 200_000), headers={"Content-Encoding": "gzip"})
    proxy = await proxying({"base_url": upstream(lambda body: bomb).url})
    told = httpx.post(f"{proxy.endpoint}/chat/completions", json=BODY)
    assert (told.status_code, "decompresses to more than 100000 bytes" in told.text) == (502, True)


async def test_an_answer_that_was_compressed_is_read(upstream, proxying):
    import json

    packed = Response(gzip.compress(json.dumps(completion("whole")).encode()), headers={"Content-Encoding": "gzip"})
    proxy = await proxying({"base_url": upstream(lambda body: packed).url})
    told = httpx.post(f"{proxy.endpoint}/chat/completions", json=BODY).json()
    assert told["choices"][0]["message"]["content"] == "whole"


async def test_a_line_separator_within_a_text_does_not_end_its_event(upstream, proxying):
    body = "data: " + '{"choices": [{"index": 0, "delta": {"content": "a\u2028b"}}]}' + "\r\n\r\ndata: [DONE]\r\n\r\n"
    proxy = await proxying({"base_url": upstream(lambda _: Response(body, media_type="text/event-stream")).url})
    told = httpx.post(f"{proxy.endpoint}/chat/completions", json=BODY | {"stream": True}).content.decode()
    assert "a\u2028b" in told


async def test_a_stream_without_any_answer_is_an_error(upstream, proxying):
    proxy = await proxying({"base_url": upstream(lambda body: Response("<html>", media_type="text/html")).url})
    told = httpx.post(f"{proxy.endpoint}/chat/completions", json=BODY | {"stream": True}).text
    assert "a stream in which there was no answer" in told


async def test_the_password_in_a_url_is_sent_and_never_told(upstream, proxying, caplog):
    server = upstream(lambda body: Response("no", 401))
    url = server.url.replace("://", "://me:hunter2@")
    proxy = await proxying({"base_url": url}, {"base_url": "http://me:hunter2@127.0.0.1:1/v1", "model_name": "away"})
    with caplog.at_level("INFO"):
        refused = httpx.post(f"{proxy.endpoint}/chat/completions", json=BODY).text
        away = httpx.post(f"{proxy.endpoint}/chat/completions", json=BODY | {"model": "away"}).text
    assert server.headers[-1]["authorization"] == "Basic bWU6aHVudGVyMg=="
    metrics = httpx.get(proxy.endpoint.removesuffix("/v1") + "/metrics").text
    for told in (refused, away, metrics):
        assert "***@127.0.0.1" in told
        assert "hunter2" not in told
    assert "hunter2" not in caplog.text
    assert "hunter2" not in repr(proxy._upstreams.replicas.servers("policy"))
