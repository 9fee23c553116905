"""Each route of each server under each limit: only health, metrics and index pages are served without admission."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import re
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Route

from apps.reward_service.scorers import reward_model
from gateway.samples import until
from gateway.scripted import ScriptedSampler
from gateway.small_tokenizer import small_tokenizer
from mini_agentic_rl.apps.reward_service import ScoreServer
from mini_agentic_rl.gateway import LLMProxy, SessionSettings
from mini_agentic_rl.gateway.http.server import MiniLLMServer
from mini_agentic_rl.gateway.settings import GatewayLimits
from mini_agentic_rl.http import AdmittedEndpoint, AdmittingServer, RequestLimits, ServerStartError
from mini_agentic_rl.integrations.tinker import TinkerServer
from mini_agentic_rl.integrations.tinker.service import TinkerService
from mini_agentic_rl.store import InMemoryLightningStore, LightningStoreServer, StoreLimits
from mini_agentic_rl.store.http import routes as wire
from mini_agentic_rl.store.http.otlp import PROTOBUF
from tiny import tiny_model

OPEN: Final = frozenset({"/", "/docs", "/openapi.json", "/health", "/v1/health", "/healthz", "/metrics", wire.HEALTH})
"""Paths that are served whatever the limits are."""
WITHOUT_BODY: Final = frozenset({"/proxy/resume"})
"""Paths that are posted to and read no body."""
PREFIX: Final = "/rollout/{rollout_id}/attempt/{attempt_id}"


@functools.cache
def _recorded() -> tuple[InMemoryLightningStore, str]:
    """Return a store, and the id of a rollout in it: some routes answer for rollouts that are known only."""
    store = InMemoryLightningStore()
    return store, asyncio.run(store.start_rollout(input=None)).rollout_id


def _gateway(key: str | None = "key", **limits: Any) -> AdmittingServer:
    tokenizer = small_tokenizer()
    sampler = ScriptedSampler(tokenizer, ["ok"])
    return MiniLLMServer(
        sampler,
        tokenizer,
        model_name="tiny",
        store=_recorded()[0],
        api_key=key,
        limits=GatewayLimits(**limits),
        sessions=SessionSettings(),
    )


def _proxy(key: str | None = "key", **limits: Any) -> AdmittingServer:
    upstream = {"model_name": "tiny", "base_url": "http://127.0.0.1:9/v1"}
    return LLMProxy(model_list=[upstream], num_retries=0, api_key=key, limits=GatewayLimits(**limits))._server


def _scores(key: str | None = "key", **limits: Any) -> AdmittingServer:
    return ScoreServer(reward_model(), api_keys=[key] if key else [], limits=GatewayLimits(**limits))


def _store(key: str | None = "key", **limits: Any) -> AdmittingServer:
    return LightningStoreServer(InMemoryLightningStore(), port=0, api_key=key, limits=StoreLimits(**limits))._thread


@functools.cache
def _tinker_service() -> TinkerService:
    """Return the service that all servers share."""
    tokenizer = small_tokenizer()
    folder = Path(tempfile.mkdtemp())
    model, options = tiny_model(len(tokenizer)), {"dtype": "float32"}
    return TinkerServer.load(model, folder, tokenizer=tokenizer, names=["tiny"], load=options).service


def _tinker(key: str | None = "key", **limits: Any) -> AdmittingServer:
    return TinkerServer(_tinker_service(), api_keys=[key] if key else [], limits=RequestLimits(**limits))


SERVERS: Final = {"gateway": _gateway, "proxy": _proxy, "scores": _scores, "store": _store, "tinker": _tinker}


@pytest.fixture(params=SERVERS)
def make(request: pytest.FixtureRequest) -> Any:
    return SERVERS[request.param]


def _routes(server: AdmittingServer) -> list[Route]:
    app = server._app
    assert isinstance(app, Starlette)
    routes = [route for route in app.routes if isinstance(route, Route)]
    assert len(routes) == len(app.routes), "something is served that is no route"
    return routes


def _limited(server: AdmittingServer) -> list[tuple[str, str]]:
    """Return method and path of every route that stands behind the admission."""
    found = []
    if any(route.path == wire.TRACES for route in _routes(server)):  # one route of Starlette's stands for all of wire's
        return [*((route.method, f"{wire.PREFIX}/{route.path}") for route in wire.ROUTES), ("POST", wire.TRACES)]
    for route in _routes(server):
        if route.path.removeprefix(PREFIX) not in OPEN:
            path = route.path.replace("{id}", "resp_1").replace("{model:path}", "tiny")
            path = re.sub(r"\{(run|checkpoint:path|sampler|session)\}", "a", path)
            path = path.replace("{rollout_id}", _recorded()[1]).replace("{attempt_id}", "a").replace("{mode}", "train")
            found += [(method, path) for method in sorted((route.methods or {"POST"}) - {"HEAD"})]
    return found


def _type_of(path: str) -> str:
    return PROTOBUF if path in (wire.TRACES, "/api/v1/forward_backward") else "application/json"


@contextlib.contextmanager
def _client(server: AdmittingServer) -> Iterator[httpx.Client]:
    with server, httpx.Client(base_url=server.root, headers={"authorization": "bearer key"}, timeout=30) as client:
        yield client


def _all_answer(server: AdmittingServer, client: httpx.Client, status: int, **options: Any) -> None:
    for method, path in _limited(server):
        answer = client.request(method, path, **options)
        if path == wire.TRACES:  # an exporter would drop its spans after 429
            assert answer.status_code == (503 if status == 429 else status)
            continue
        assert answer.status_code == status, (method, path, answer.text)
        body = answer.json()
        assert body["error"]["message"] if "error" in body else body["detail"]


def test_every_route_is_admitted(make):
    for route in _routes(make()):
        if route.path.removeprefix(PREFIX) not in OPEN:
            assert isinstance(route.endpoint, AdmittedEndpoint), route.path


def test_no_route_answers_without_the_key_or_a_server_that_stops(make):
    server = make()
    with _client(server) as client:
        _all_answer(server, client, 401, headers={"authorization": "bearer other"})
        server.admission.drain(0)
        _all_answer(server, client, 503)


def test_a_body_is_bounded_in_size_and_time_and_has_a_type_that_needs_a_preflight_request(make):
    server = make(max_body_bytes=100, max_body_seconds=0.2)
    awaited: dict[str, socket.socket] = {}
    with _client(server) as client, contextlib.ExitStack() as stack:
        for method, path in _limited(server):
            if method != "POST" or path in WITHOUT_BODY:
                continue
            kind = _type_of(path)
            assert client.post(path, content=b" " * 101, headers={"content-type": kind}).status_code == 413, path
            head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer key\r\nContent-Length: 9\r\n"
            slow = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), 20))
            slow.sendall(f"{head}Content-Type: {kind}\r\n\r\n{{".encode())
            awaited[path] = slow
        for path, slow in awaited.items():
            assert slow.recv(4096).startswith(b"HTTP/1.1 408"), path
        until(lambda: server.admission.active == 0)


FOREIGN: Final = (
    {"Origin": "http://evil.example"},
    {"Host": "evil.example"},
    {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"},
)
"""Headers of a page of another site, or of one whose name resolves to this computer."""


def test_a_server_without_a_key_answers_no_page_of_another_site(make):
    server = make(key=None)
    with _client(server) as client:
        for method, path in [("GET", "/"), *_limited(server)]:
            for headers in FOREIGN:
                answer = client.request(method, path, headers=headers)
                assert answer.status_code == 403, (method, path, headers)
                assert "access-control-allow-origin" not in answer.headers
            if method == "POST":
                typed = client.post(path, content=b"{}", headers={"content-type": "text/plain"})
                assert typed.status_code in (404, 415), path


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "gateway.example"])
def test_a_server_that_others_reach_needs_a_key(host):
    tokenizer = small_tokenizer()
    upstream = {"model_name": "a", "base_url": "http://x/v1", "api_key": "paid"}
    starts = (
        lambda: MiniLLMServer(ScriptedSampler(tokenizer, ["ok"]), tokenizer, model_name="tiny", host=host).start(),
        lambda: ScoreServer(reward_model(), host=host).start(),
        lambda: asyncio.run(LLMProxy(host=host, model_list=[upstream]).start()),
    )
    for start in starts:
        with pytest.raises(ServerStartError, match="API key") as raised:
            start()
        assert raised.value.setting == "host"


def test_a_response_is_read_continued_and_deleted_with_its_own_key_only():
    tokenizer = small_tokenizer()
    sampler = ScriptedSampler(tokenizer, ["ok"])
    server = MiniLLMServer(sampler, tokenizer, model_name="tiny", api_keys=["alice", "bob"])
    with server, httpx.Client(base_url=server.root, timeout=30) as client:
        alice, bob = {"authorization": "Bearer alice"}, {"authorization": "Bearer bob"}
        body = {"model": "tiny", "input": "the vault is ochre"}
        made = client.post("/v1/responses", json=body, headers=alice).json()
        path = f"/v1/responses/{made['id']}"
        follow_up = {"model": "tiny", "input": "?", "previous_response_id": made["id"]}
        tries = [
            client.get(path, headers=bob),
            client.delete(path, headers=bob),
            client.get(f"{path}/input_items", headers=bob),
            client.get(path),
            client.post("/v1/responses", json=follow_up, headers=bob),
        ]
        assert [answer.status_code for answer in tries] == [404, 404, 404, 401, 400]
        assert not any("ochre" in answer.text for answer in tries)
        assert client.get(path, headers=alice).json()["id"] == made["id"]
        assert client.delete(path, headers=alice).json()["deleted"] is True
