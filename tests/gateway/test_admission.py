"""Who comes in when, as clients over HTTP see it."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import openai
import pytest
from openai import OpenAI

from mini_agentic_rl.gateway.settings import GatewayLimits

BODY = {"model": "tiny", "messages": [{"role": "user", "content": "12+30?"}]}


def _post(server, key=None, **more):
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    return httpx.post(f"{server.endpoint}/chat/completions", json=BODY | more, headers=headers, timeout=20)


def _health(server):
    return httpx.get(f"{server.endpoint}/health")


def _until(condition, seconds=10.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "what was waited for did not come"
        time.sleep(0.005)


def test_a_key_has_no_more_requests_inside_than_it_may(serve):
    server, sampler = serve(["word " * 10], delay=0.01, limits=GatewayLimits(max_concurrent_requests=2))
    with ThreadPoolExecutor(2) as pool:
        first = [pool.submit(_post, server, stream=True) for _ in range(2)]
        _until(lambda: sampler.active == 2)
        refused = _post(server, stream=True)
        assert refused.status_code == 429
        assert "max_concurrent_requests" in refused.json()["error"]["message"]
        assert [future.result().status_code for future in first] == [200, 200]
    assert _post(server).status_code == 200
    _until(lambda: server.admission.active == 0)


def test_a_paused_server_answers_what_arrives_once_it_is_resumed(serve):
    server, sampler = serve(["ok"])
    server.pause()
    with ThreadPoolExecutor(3) as pool:
        futures = [pool.submit(_post, server, stream=stream) for stream in (False, True, False)]
        _until(lambda: server.admission.waiting == 3)
        assert not sampler.requests
        assert _health(server).json()["status"] == "paused"
        server.resume()
        assert [future.result().status_code for future in futures] == [200] * 3
    assert server.admission.waiting == 0


def test_a_paused_server_that_refuses_says_when_to_come_again(serve):
    server, sampler = serve(["ok"], limits=GatewayLimits(when_paused="refuse"))
    server.pause()
    refused = _post(server)
    assert refused.status_code == 429
    assert float(refused.headers["retry-after"]) > 0
    assert not sampler.requests
    server.resume()
    assert _post(server).status_code == 200


def test_a_client_that_leaves_during_a_pause_is_forgotten(serve):
    server, sampler = serve(["ok"])
    server.pause()
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{server.endpoint}/chat/completions", json=BODY, timeout=0.3)
    _until(lambda: server.admission.active == 0 and server.admission.waiting == 0)
    server.resume()
    assert not sampler.requests


def test_a_stopping_server_finishes_what_is_inside_and_sends_others_away(serve):
    server, sampler = serve(["word " * 20], delay=0.01)
    with ThreadPoolExecutor(1) as pool, httpx.Client() as kept:
        kept.get(f"{server.endpoint}/health")
        future = pool.submit(_post, server)
        _until(lambda: sampler.active)
        stopping = threading.Thread(target=server.stop, kwargs={"timeout": 20})
        stopping.start()
        _until(lambda: server.admission.draining)
        refused = kept.post(f"{server.endpoint}/chat/completions", json=BODY)
        assert refused.status_code == 503
        assert float(refused.headers["retry-after"]) > 0
        assert refused.json()["error"]["code"] == "server_stopping"
        health = _health(server)
        assert (health.status_code, health.json()["status"]) == (503, "draining")
        assert future.result().json()["choices"][0]["message"]["content"] == "word " * 20
        stopping.join()
    with server:
        assert _post(server).status_code == 200


def test_stopping_a_paused_server_sends_away_what_it_holds(serve):
    server, _ = serve(["ok"])
    server.pause()
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(_post, server)
        _until(lambda: server.admission.waiting)
        server.stop(timeout=10)
        assert future.result().status_code == 503


def test_a_refusal_of_the_gate_is_in_the_words_of_the_dialect(serve):
    server, _ = serve(["ok"], api_key="secret")
    client = OpenAI(base_url=server.endpoint, api_key="wrong", max_retries=0)
    with pytest.raises(openai.AuthenticationError):
        client.responses.create(model="tiny", input="hi")
    anthropic = httpx.post(f"{server.endpoint}/messages", json={})
    assert (anthropic.status_code, anthropic.json()["type"]) == (401, "error")
