"""What Prometheus is told."""

from __future__ import annotations

import asyncio
import time

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from mini_agentic_rl.gateway.settings import GatewayLimits
from mini_agentic_rl.http import OverloadedError
from mini_agentic_rl.store import InMemoryLightningStore
from mini_agentic_rl.types import Span

from .leaving import ask_and_leave

BODY = {"model": "tiny", "messages": [{"role": "user", "content": "12+30?"}]}
PREFIX = "mini_agentic_rl_gateway_"


def scraped(server):
    """Sample values by name without the prefix, and labels."""
    text = httpx.get(f"{server.endpoint.removesuffix('/v1')}/metrics").text
    return {
        (sample.name.removeprefix(PREFIX), *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def _post(server, path="chat/completions", body=BODY, **more):
    return httpx.post(f"{server.endpoint}/{path}", json=body | more, timeout=10)


def _until(server, name, value):
    end = time.monotonic() + 10
    while scraped(server).get(name) != value:
        assert time.monotonic() < end, f"{name} is {scraped(server).get(name)}, not {value}"
        time.sleep(0.01)


def test_requests_are_counted_by_dialect_and_outcome(serve):
    server, sampler = serve(["ok"], limits=GatewayLimits(max_body_bytes=1000))
    _post(server)
    _post(server, stream=True)
    _post(server, "responses", {"model": "tiny", "input": "hi"})
    _post(server, "messages", {"model": "tiny", "max_tokens": 5, "messages": BODY["messages"]})
    _post(server, temperature=9)
    _post(server, user="x" * 1000)
    sampler.failure = OverloadedError()
    _post(server)
    sampler.failure = RuntimeError("out of order")
    _post(server)
    _until(server, ("requests_total", "chat/completions", "failed"), 1)
    found = scraped(server)
    assert found["requests_total", "chat/completions", "ok"] == 2
    assert found["requests_total", "chat/completions", "refused"] == 3
    assert found["requests_total", "responses", "ok"] == 1
    assert found["requests_total", "messages", "ok"] == 1
    assert found["request_seconds_count", "chat/completions"] == 2
    assert found["time_to_first_token_seconds_count", "chat/completions"] == 1
    assert found["requests_inside", "active"] == 0


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_away_is_a_cancelled_request(serve, stream):
    server, sampler = serve(["word " * 1000], delay=0.02)
    assert bool(ask_and_leave(server.endpoint, BODY | {"stream": stream}, begun=lambda: sampler.requests)) == stream
    _until(server, ("requests_total", "chat/completions", "cancelled"), 1)
    assert sampler.closed_early == 1


class _FullStore(InMemoryLightningStore):
    async def add_span(self, span: Span) -> Span | None:
        raise OSError("no space left on device")


def test_an_answer_that_breaks_on_its_way_is_a_failed_request(serve):
    store = _FullStore()
    rollout = asyncio.run(store.start_rollout({"question": "?"}))
    server, _ = serve(["word " * 5], store=store)
    url = server.as_resource().get_base_url(rollout.rollout_id, rollout.attempt.attempt_id)
    with httpx.stream("POST", f"{url}/chat/completions", json=BODY | {"stream": True}) as answer:
        assert answer.status_code == 200
        assert b"error" in answer.read()
    _until(server, ("requests_total", "chat/completions", "failed"), 1)


def test_tokens_prompts_and_the_state_of_the_gate_are_told(serve):
    server, _ = serve(["ok"])
    usage = _post(server).json()["usage"]
    server.pause()
    found = scraped(server)
    assert found["tokens_total", "prompt"] == usage["prompt_tokens"]
    assert found["tokens_total", "completion"] == usage["completion_tokens"]
    assert found["tokens_total", "cached"] == 5
    assert found["prompts_total", "rendered"] == 1
    assert found["prompts_total", "forked_edited"] == 0
    assert found["remembered", "attempts"] == 1
    assert (found["state", "paused"], found["state", "draining"]) == (1, 0)
    assert found["sequences", "running"] == 0
