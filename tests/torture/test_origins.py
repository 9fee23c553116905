"""Requests that a web page of another site has a browser send, to every route of each server that asks for no key."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final

import httpx
import pytest

from apps.reward_service.scorers import reward_model
from gateway.scripted import ScriptedSampler
from gateway.small_tokenizer import small_tokenizer
from mini_agentic_rl.apps.reward_service import ScoreServer
from mini_agentic_rl.gateway import LLMProxy
from mini_agentic_rl.gateway.http.server import MiniLLMServer
from mini_agentic_rl.http import ServerStartError

from .neighbours import Served, served
from .servers import GATEWAY, PROXY, SCORES, STORE, TINKER

PATHS: Final = {
    "gateway": (
        GATEWAY,
        (
            "/",
            "/health",
            "/metrics",
            "/v1/models",
            "/v1/models/tiny",
            "/v1/chat/completions",
            "/v1/messages",
            "/v1/messages/count_tokens",
            "/v1/responses",
            "/v1/responses/input_tokens",
            "/v1/responses/resp_1",
            "/rollout/r/attempt/a/v1/chat/completions",
            "/nothing",
        ),
    ),
    "proxy": (
        PROXY,
        ("/", "/health", "/metrics", "/v1/models", "/v1/chat/completions", "/v1/messages", "/v1/responses"),
    ),
    "scores": (SCORES, ("/", "/openapi.json", "/health", "/metrics", "/score", "/score/batch", "/score-pair")),
    "tinker": (
        TINKER,
        (
            "/",
            "/health",
            "/metrics",
            "/api/v1/healthz",
            "/api/v1/create_session",
            "/api/v1/forward_backward",
            "/api/v1/asample",
            "/api/v1/retrieve_future",
            "/api/v1/training_runs/a/checkpoints/weights/a",
            "/api/v1/sessions/a/finish",
        ),
    ),
    "store": (
        STORE,
        (
            "/",
            "/openapi.json",
            "/v1/agl/statistics",
            "/v1/agl/rollouts",
            "/v1/agl/queues/rollouts/dequeue",
            "/v1/traces",
        ),
    ),
}
FOREIGN: Final = (
    {"Origin": "http://evil.example"},
    {"Origin": "null"},
    {"Origin": "http://localhost.evil.example"},
    {"Origin": "http://127.0.0.1"},
    {"Host": "evil.example"},
    {"Host": "evil.example:80", "Origin": "http://evil.example:80"},
    {"Host": "localhost.evil.example"},
    {"Host": "127.0.0.1.evil.example"},
    {"Host": "[::1"},
    {"Host": "evil.example:port"},
    {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"},
    {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "navigate"},
)
"""As a page of another site sends them, or one whose owner has pointed its name to this computer."""
METHODS: Final = ("GET", "POST", "OPTIONS", "DELETE")
TYPES: Final = (
    "text/plain",
    "text/plain;charset=UTF-8",
    "multipart/form-data; boundary=a",
    "TEXT/PLAIN; a=application/json",
)
"""Types of a body that a browser sends to another site without asking."""


@pytest.fixture(scope="module", params=PATHS)
def server(request: pytest.FixtureRequest) -> Iterator[tuple[Served, tuple[str, ...]]]:
    program, paths = PATHS[request.param]
    with served(program) as running:
        yield running, paths


def test_foreign_origins_and_hosts(attack, server):
    running, paths = server
    with httpx.Client(base_url=running.url) as client:
        tries = [(path, headers, method) for path in paths for headers in FOREIGN for method in METHODS]
        for path, headers, method in tries[:: max(1, len(tries) // attack.times(len(tries)))]:
            with attack.attempt(f"{method} {path} with {headers}"):
                answer = client.request(method, path, headers=headers)
                assert answer.status_code == 403, answer.text
                assert "access-control-allow-origin" not in answer.headers


def test_bodies_of_a_type_that_needs_no_leave(attack, server):
    running, paths = server
    with httpx.Client(base_url=running.url) as client:
        for path in paths:
            if client.post(path, content=b"{}", headers={"Content-Type": "application/json"}).status_code in (404, 405):
                continue
            for kind in TYPES:
                with attack.attempt(f"{kind} to {path}"):
                    assert client.post(path, content=b"{}", headers={"Content-Type": kind}).status_code == 415


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "gateway.example"])
def test_servers_that_others_reach_without_a_key(attack, host):
    tokenizer = small_tokenizer()
    sampler = ScriptedSampler(tokenizer, ["ok"])

    async def start_proxy() -> None:
        await LLMProxy(
            host=host, model_list=[{"model_name": "a", "base_url": "http://x/v1", "api_key": "paid"}]
        ).start()

    def start_gateway() -> None:
        MiniLLMServer(sampler, tokenizer, model_name="tiny", host=host).start()

    def start_scores() -> None:
        ScoreServer(reward_model(), host=host).start()

    for start in (start_gateway, start_scores, lambda: asyncio.run(start_proxy())):
        with attack.attempt(f"{start} at {host}"), pytest.raises(ServerStartError, match="API key") as raised:
            start()
        assert raised.value.setting == "host"
