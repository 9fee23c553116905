"""The server as a process sees it: ports, keys, bounds, failures, stopping."""

from __future__ import annotations

import sys
import threading
import time

import httpx
import pytest

from mini_agentic_rl.gateway.http.server import MiniLLMServer
from mini_agentic_rl.http import OverloadedError
from mini_agentic_rl.http.server import ServerStartError

from .scripted import ScriptedSampler

QUESTION = [{"role": "user", "content": "12+30?"}]
BODY = {"model": "tiny", "messages": QUESTION}


def test_a_port_in_use_is_one_clear_error(serve, tokenizer):
    server, sampler = serve(["ok"])
    second = MiniLLMServer(sampler, tokenizer, model_name="tiny", port=server.port)
    with pytest.raises(ServerStartError, match=rf"port {server.port} of 127.0.0.1 is already in use") as raised:
        second.start()
    assert raised.value.setting == "port"


@pytest.mark.parametrize(("host", "port", "setting"), [("127.0.0.1", 70000, "port"), ("203.0.113.7", 0, "host")])
def test_an_address_that_cannot_be_had_names_the_setting(tokenizer, host, port, setting):
    server = MiniLLMServer(ScriptedSampler(tokenizer, ["ok"]), tokenizer, model_name="tiny", host=host, port=port)
    with pytest.raises(ServerStartError) as raised:
        server.start()
    assert raised.value.setting == setting


def _new_server_threads(before):
    return [thread for thread in threading.enumerate() if thread.name == "gateway server" and thread not in before]


def test_stopping_frees_the_port_and_the_thread_and_allows_a_new_start(serve):
    before = threading.enumerate()
    server, _ = serve(["ok"])
    port = server.port
    assert _new_server_threads(before)
    server.stop()
    server.stop()
    assert not _new_server_threads(before)
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"http://127.0.0.1:{port}/health")
    with server:
        assert httpx.get(server.endpoint.replace("/v1", "/health")).json()["status"] == "ok"


def test_a_call_that_takes_too_long_is_cancelled_when_the_server_stops(serve):
    server, sampler = serve(["word " * 1000], delay=0.05)

    def ask():
        with pytest.raises(httpx.HTTPError):
            httpx.post(f"{server.endpoint}/chat/completions", json=BODY).raise_for_status()

    asking = threading.Thread(target=ask)
    asking.start()
    while not sampler.active:
        time.sleep(0.005)
    server.stop(timeout=1)
    asking.join()
    assert sampler.active == 0


@pytest.mark.parametrize("stream", [False, True])
def test_a_busy_sampler_answers_429_with_the_time_to_wait(serve, stream):
    server, _ = serve(["ok"], failure=OverloadedError(retry_after=2.5))
    answer = httpx.post(f"{server.endpoint}/chat/completions", json=BODY | {"stream": stream})
    assert answer.status_code == 429
    assert answer.headers["retry-after"] == "2.5"
    assert answer.json()["error"]["code"] == "rate_limit_exceeded"


@pytest.mark.parametrize("stream", [False, True])
def test_a_sampler_that_breaks_gives_a_500_without_its_insides_and_is_logged(serve, caplog, stream):
    server, _ = serve(["ok"], failure=KeyError("inside"))
    answer = httpx.post(f"{server.endpoint}/chat/completions", json=BODY | {"stream": stream})
    assert answer.status_code == 500
    assert "inside" not in answer.text
    assert "KeyError" in caplog.text
    assert server.service.counters.failed == 1
    assert server.service.counters.active == 0


def test_health_tells_of_requests_and_conversations(serve):
    server, _ = serve(["ok"])
    httpx.post(f"{server.endpoint}/chat/completions", json=BODY)
    for path in ("/health", "/v1/health", "/rollout/r/attempt/a/health"):
        health = httpx.get(f"http://127.0.0.1:{server.port}{path}").json()
        assert health["requests"]["completed"] == 1
        assert health["conversations"]["rendered"] == 1
        assert health["model"] == "tiny"


@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="no thread CPU clock here: the cost of a request is left unchecked"
)
def test_the_cost_of_a_request_beside_generation_stays_small(serve):
    before = threading.enumerate()
    server, _ = serve(["The answer is 42."], tokens_per_delta=100)
    (thread,) = _new_server_threads(before)
    clock = time.pthread_getcpuclockid(thread.ident)
    with httpx.Client() as client:
        for _ in range(5):
            client.post(f"{server.endpoint}/chat/completions", json=BODY)
        start = time.clock_gettime(clock)
        for _ in range(50):
            client.post(f"{server.endpoint}/chat/completions", json=BODY)
        spent = time.clock_gettime(clock) - start
    assert spent / 50 < 0.02, f"{spent / 50 * 1000:.1f} ms of CPU for each request"
