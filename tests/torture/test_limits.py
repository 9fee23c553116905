"""Each route of each server under each limit: nothing that answers out of the model, or out of what it remembers, is
served past the admission."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import re
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Route

from apps.reward_service.scorers import reward_model
from gateway.scripted import ScriptedSampler
from gateway.small_tokenizer import small_tokenizer
from mini_agentic_rl.apps.reward_service import ScoreServer
from mini_agentic_rl.gateway import LLMProxy, SessionSettings
from mini_agentic_rl.gateway.http.server import MiniLLMServer
from mini_agentic_rl.gateway.settings import GatewayLimits
from mini_agentic_rl.http import AdmittedEndpoint, AdmittingServer, RequestLimits
from mini_agentic_rl.integrations.tinker import TinkerServer
from mini_agentic_rl.integrations.tinker.routes import TinkerService
from mini_agentic_rl.store import InMemoryLightningStore, LightningStoreServer, StoreLimits
from mini_agentic_rl.store.http import routes as wire
from mini_agentic_rl.store.http.otlp import PROTOBUF
from tiny import tiny_model

from .conftest import Attack

OPEN: Final = frozenset({"/", "/docs", "/openapi.json", "/health", "/v1/health", "/healthz", "/metrics", wire.HEALTH})
"""What is served whatever the limits are: what a server is and how it is, at the cost of a few lines."""
WITHOUT_BODY: Final = frozenset({"/proxy/resume"})
"""Paths that are posted to and read no body."""
PREFIX: Final = "/rollout/{rollout_id}/attempt/{attempt_id}"


@functools.cache
def _recorded() -> tuple[InMemoryLightningStore, str]:
    """Return a store, and the id of a rollout in it: some routes answer for rollouts that are known only."""
    store = InMemoryLightningStore()
    return store, asyncio.run(store.start_rollout(input=None)).rollout_id


def _gateway(**limits: Any) -> AdmittingServer:
    tokenizer = small_tokenizer()
    sampler = ScriptedSampler(tokenizer, ["ok"])
    return MiniLLMServer(
        sampler,
        tokenizer,
        model_name="tiny",
        store=_recorded()[0],
        api_key="key",
        limits=GatewayLimits(**limits),
        sessions=SessionSettings(),
    )


def _proxy(**limits: Any) -> AdmittingServer:
    upstream = {"model_name": "tiny", "base_url": "http://127.0.0.1:9/v1"}
    return LLMProxy(model_list=[upstream], num_retries=0, api_key="key", limits=GatewayLimits(**limits))._server


def _scores(**limits: Any) -> AdmittingServer:
    return ScoreServer(reward_model(), api_keys=["key"], limits=GatewayLimits(**limits))


def _store(**limits: Any) -> AdmittingServer:
    return LightningStoreServer(InMemoryLightningStore(), port=0, api_key="key", limits=StoreLimits(**limits))._thread


@functools.cache
def _tinker_service() -> TinkerService:
    """Return the service that all servers share: whoever is not let in asks nothing of it."""
    tokenizer = small_tokenizer()
    folder = Path(tempfile.mkdtemp())
    model, options = tiny_model(len(tokenizer)), {"dtype": "float32"}
    return TinkerServer.load(model, folder, tokenizer=tokenizer, names=["tiny"], load=options).service


def _tinker(**limits: Any) -> AdmittingServer:
    return TinkerServer(_tinker_service(), api_keys=["key"], limits=RequestLimits(**limits))


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
    return PROTOBUF if path == wire.TRACES else "application/json"


@contextlib.contextmanager
def _client(server: AdmittingServer) -> Iterator[httpx.Client]:
    with server, httpx.Client(base_url=server.root, headers={"authorization": "bearer key"}, timeout=30) as client:
        yield client


def _wait_for(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come to pass"
        time.sleep(0.005)


def _all_answer(attack: Attack, server: AdmittingServer, client: httpx.Client, status: int, **options: Any) -> None:
    for method, path in _limited(server):
        with attack.attempt(f"{method} {path}"):
            answer = client.request(method, path, **options)
            if path == wire.TRACES:  # an exporter would drop its spans after 429
                assert answer.status_code == (503 if status == 429 else status)
                continue
            assert answer.status_code == status, answer.text
            body = answer.json()
            assert body["error"]["message"] if "error" in body else body["detail"]


def test_every_route_stands_behind_the_admission(attack, make):
    for route in _routes(make()):
        if route.path.removeprefix(PREFIX) not in OPEN:
            with attack.attempt(route.path):
                assert isinstance(route.endpoint, AdmittedEndpoint)


def test_routes_without_a_key(attack, make):
    server = make()
    with _client(server) as client:
        _all_answer(attack, server, client, 401, headers={"authorization": "bearer other"})


def test_routes_beyond_the_rate(attack, make):
    server = make(max_requests_per_minute=1)
    with _client(server) as client:
        client.request(*_limited(server)[0])
        _all_answer(attack, server, client, 429)


def test_routes_beyond_the_number_at_once(attack, make):
    server = make(max_concurrent_requests=1)
    with _client(server) as client, socket.create_connection(("127.0.0.1", server.port)) as slow:
        path = next(path for method, path in _limited(server) if method == "POST")
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer key\r\nContent-Length: 9\r\n\r\n"
        slow.sendall(head.encode())
        _wait_for(lambda: server.admission.active == 1)
        _all_answer(attack, server, client, 429)


def test_routes_of_a_server_that_stops(attack, make):
    server = make()
    with _client(server) as client:
        server.admission.drain(0)
        _all_answer(attack, server, client, 503)


def test_bodies_beyond_their_bound(attack, make):
    server = make(max_body_bytes=100)
    with _client(server) as client:
        for method, path in _limited(server):
            if method == "POST" and path not in WITHOUT_BODY:
                with attack.attempt(path):
                    answer = client.post(path, content=b" " * 101, headers={"content-type": _type_of(path)})
                    assert answer.status_code == 413, answer.text


def test_bodies_that_do_not_arrive(attack, make):
    server = make(max_body_seconds=0.2)
    with _client(server):
        for method, path in _limited(server):
            if method == "POST" and path not in WITHOUT_BODY:
                head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer key\r\nContent-Length: 9\r\n"
                head += f"Content-Type: {_type_of(path)}\r\n\r\n"
                with attack.attempt(path), socket.create_connection(("127.0.0.1", server.port), 20) as slow:
                    slow.sendall(head.encode() + b"{")
                    assert slow.recv(4096).startswith(b"HTTP/1.1 408")
        with attack.attempt("nobody is inside any more", limit_s=30):
            _wait_for(lambda: server.admission.active == 0)


async def test_routes_of_the_store_without_its_key(attack):
    server = LightningStoreServer(InMemoryLightningStore(), port=0, api_key="key")
    await server.start()
    paths = [*((route.method, f"{wire.PREFIX}/{route.path}") for route in wire.ROUTES), ("POST", wire.TRACES)]
    with httpx.Client(base_url=server.endpoint) as client:
        for method, path in [*paths, ("GET", "/openapi.json")]:
            for headers in ({}, {"authorization": "bearer other"}, {"x-api-key": "key"}):
                with attack.attempt(f"{method} {path}"):
                    assert client.request(method, path, headers=headers).status_code == 401
    await server.stop()
