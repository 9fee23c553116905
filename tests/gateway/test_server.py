"""The server as its clients and its process see it: pauses, stopping, failures, health and metrics."""

from __future__ import annotations

import gzip
import json
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from mini_agentic_rl.gateway.http.server import MiniLLMServer
from mini_agentic_rl.gateway.settings import GatewayLimits
from mini_agentic_rl.http import OverloadedError
from mini_agentic_rl.http.server import ServerStartError

from .samples import until
from .scripted import ScriptedSampler

BODY = {"model": "tiny", "messages": [{"role": "user", "content": "12+30?"}]}


def _post(server, path="chat/completions", body=BODY, **more):
    return httpx.post(f"{server.endpoint}/{path}", json=body | more, timeout=20)


def _health(server, path="/health"):
    return httpx.get(f"{server.root}{path}")


def scraped(server):
    """Sample values by name without the prefix, and labels."""
    text = httpx.get(f"{server.root}/metrics").text
    return {
        (sample.name.removeprefix("mini_agentic_rl_gateway_"), *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_a_paused_server_holds_requests_until_it_is_resumed_and_drops_those_whose_client_leaves(serve):
    server, sampler = serve(["ok"])
    server.pause()
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{server.endpoint}/chat/completions", json=BODY, timeout=0.3)
    until(lambda: server.admission.active == 0 and server.admission.waiting == 0)
    with ThreadPoolExecutor(3) as pool:
        futures = [pool.submit(_post, server, stream=stream) for stream in (False, True, False)]
        until(lambda: server.admission.waiting == 3)
        assert not sampler.requests
        assert _health(server).json()["status"] == "paused"
        server.resume()
        assert [future.result().status_code for future in futures] == [200] * 3
    assert server.admission.waiting == 0
    server.pause()
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(_post, server)
        until(lambda: server.admission.waiting)
        server.stop(timeout=10)
        assert future.result().status_code == 503


def test_a_paused_server_that_refuses_sends_the_time_to_wait(serve):
    server, sampler = serve(["ok"], limits=GatewayLimits(when_paused="refuse"))
    server.pause()
    refused = _post(server)
    assert refused.status_code == 429
    assert float(refused.headers["retry-after"]) > 0
    assert not sampler.requests
    server.resume()
    assert _post(server).status_code == 200


def test_a_stopping_server_finishes_running_requests_and_refuses_others(serve):
    server, sampler = serve(["word " * 20], delay=0.01)
    with ThreadPoolExecutor(1) as pool, httpx.Client() as kept:
        kept.get(f"{server.endpoint}/health")
        future = pool.submit(_post, server)
        until(lambda: sampler.active)
        stopping = threading.Thread(target=server.stop, kwargs={"timeout": 20})
        stopping.start()
        until(lambda: server.admission.draining)
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


def test_stopping_cancels_long_calls_frees_port_and_thread_and_allows_a_new_start(serve):
    before = threading.enumerate()
    server, sampler = serve(["word " * 1000], delay=0.05)
    port = server.port

    def threads():
        return [each for each in threading.enumerate() if each.name == "gateway server" and each not in before]

    def ask():
        with pytest.raises(httpx.HTTPError):
            _post(server).raise_for_status()

    asking = threading.Thread(target=ask)
    asking.start()
    until(lambda: sampler.active)
    assert threads()
    server.stop(timeout=0.1)
    server.stop()
    asking.join()
    assert sampler.active == 0
    assert not threads()
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"http://127.0.0.1:{port}/health")
    with server:
        assert _health(server).json()["status"] == "ok"


def test_an_address_that_cannot_be_used_names_the_setting(serve, tokenizer):
    running, _ = serve(["ok"])
    sampler = ScriptedSampler(tokenizer, ["ok"])
    for host, port, setting, reason in (
        ("127.0.0.1", running.port, "port", f"port {running.port} of 127.0.0.1 is already in use"),
        ("127.0.0.1", 70000, "port", "70000"),
        ("203.0.113.7", 0, "host", "203.0.113.7"),
    ):
        server = MiniLLMServer(sampler, tokenizer, model_name="tiny", host=host, port=port)
        with pytest.raises(ServerStartError, match=reason) as raised:
            server.start()
        assert raised.value.setting == setting


@pytest.mark.parametrize("stream", [False, True])
def test_a_sampler_that_is_busy_gives_429_and_one_that_fails_gives_500_without_its_message(serve, caplog, stream):
    server, sampler = serve(["ok"], failure=OverloadedError("the sampler is busy", retry_after=2.5))
    busy = _post(server, stream=stream)
    assert (busy.status_code, busy.headers["retry-after"]) == (429, "2.5")
    assert busy.json()["error"]["code"] == "rate_limit_exceeded"
    sampler.failure = KeyError("inside")
    failed = _post(server, stream=stream)
    assert failed.status_code == 500
    assert "inside" not in failed.text
    assert "KeyError" in caplog.text
    assert (server.service.counters.failed, server.service.counters.active) == (2, 0)


def test_a_compressed_body_is_refused_with_the_encoding_that_is_taken(serve):
    server, _ = serve(["ok"])
    headers = {"Content-Encoding": "gzip", "Content-Type": "application/json"}
    content = gzip.compress(json.dumps(BODY).encode())
    refused = httpx.post(f"{server.endpoint}/chat/completions", content=content, headers=headers)
    assert (refused.status_code, refused.headers["accept-encoding"]) == (415, "identity")
    assert "Content-Encoding 'gzip'" in refused.json()["error"]["message"]


def test_health_and_metrics_report_requests_conversations_and_the_state(serve):
    server, sampler = serve(["ok"], limits=GatewayLimits(max_body_bytes=1000))
    usage = _post(server).json()["usage"]
    for path in ("/health", "/v1/health", "/rollout/r/attempt/a/health"):
        health = _health(server, path).json()
        assert (health["model"], health["requests"]["completed"], health["conversations"]["rendered"]) == ("tiny", 1, 1)
    samples = scraped(server)
    assert samples["tokens_total", "prompt"] == usage["prompt_tokens"]
    assert samples["tokens_total", "completion"] == usage["completion_tokens"]
    assert samples["tokens_total", "cached"] == 5
    assert (samples["prompts_total", "rendered"], samples["prompts_total", "forked_edited"]) == (1, 0)
    assert (samples["remembered", "attempts"], samples["sequences", "running"]) == (1, 0)
    _post(server, stream=True)
    _post(server, "responses", {"model": "tiny", "input": "hi"})
    _post(server, "messages", {"model": "tiny", "max_tokens": 5, "messages": BODY["messages"]})
    _post(server, temperature=9)
    _post(server, user="x" * 1000)
    sampler.failure = OverloadedError("the sampler is busy")
    _post(server)
    sampler.failure = RuntimeError("out of order")
    _post(server)
    until(lambda: scraped(server).get(("requests_total", "chat/completions", "failed")) == 1)
    server.pause()
    samples = scraped(server)
    assert samples["requests_total", "chat/completions", "ok"] == 2
    assert samples["requests_total", "chat/completions", "refused"] == 3
    assert samples["requests_total", "responses", "ok"] == samples["requests_total", "messages", "ok"] == 1
    assert samples["request_seconds_count", "chat/completions"] == 2
    assert samples["time_to_first_token_seconds_count", "chat/completions"] == 1
    assert samples["requests_inside", "active"] == 0
    assert (samples["state", "paused"], samples["state", "draining"]) == (1, 0)
