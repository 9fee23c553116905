"""The store server as the network sees it: keys, bodies, errors, ports, starting and stopping."""

from __future__ import annotations

import asyncio
import gzip
import inspect
import json
import logging
import threading
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from mini_agentic_rl.errors import UserError
from mini_agentic_rl.store import (
    InMemoryLightningStore,
    LightningStore,
    LightningStoreClient,
    LightningStoreError,
    LightningStoreServer,
    LightningStoreStatistics,
    LightningStoreThreaded,
)
from mini_agentic_rl.store.base import STORE_METHODS
from mini_agentic_rl.store.http import routes
from mini_agentic_rl.store.http.routes import Route

from .conftest import Serve

LIMIT = 20_000


@pytest.fixture
async def server(serve: Serve) -> LightningStoreServer:
    return (await serve(limits={"max_body_bytes": LIMIT}))[0]


@pytest.fixture
async def http(server: LightningStoreServer) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=f"{server.endpoint}/v1/agl/") as client:
        yield client


def test_other_computers_are_let_in_only_with_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    host = "store.example"
    monkeypatch.delenv("AGL_API_KEY", raising=False)
    with pytest.raises(UserError, match=r"^host: .*`api_key` or AGL_API_KEY"):
        LightningStoreServer(InMemoryLightningStore(), host=host)
    LightningStoreServer(InMemoryLightningStore(), host=host, api_key="secret")
    LightningStoreServer(InMemoryLightningStore(), host="127.0.0.1")


async def test_a_key_of_the_environment_is_asked_for_and_sent(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGL_API_KEY", "secret")
    server, friend = await serve()
    stranger = LightningStoreClient(server.endpoint, api_key="wrong")
    try:
        with pytest.raises(LightningStoreError, match="AGL_API_KEY"):
            await stranger.enqueue_rollout("a")
        await friend.enqueue_rollout("b")
        assert [rollout.input for rollout in await server.query_rollouts()] == ["b"]
        async with httpx.AsyncClient(base_url=server.endpoint) as http:
            assert (await http.get("/v1/agl/health")).json() == {"status": "ok"}
            for path in ("/v1/agl/statistics", "/v1/agl/nothing"):
                refused = await http.get(path, headers={"Authorization": "Bearer Secret"})
                assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
                assert "API key" in refused.json()["detail"]
            traces = await http.post("/v1/traces", headers={"Content-Type": "application/x-protobuf"})
            assert traces.status_code == 401
    finally:
        await stranger.close()


async def test_web_pages_cannot_reach_a_store_that_asks_for_no_key(http: httpx.AsyncClient) -> None:
    for headers, status in (
        ({}, 200),
        ({"Origin": "http://attacker.example"}, 403),
        ({"Host": "attacker.example:4747", "Origin": "http://attacker.example:4747"}, 403),
    ):
        assert (await http.post("queues/rollouts/dequeue", headers=headers)).status_code == status


@pytest.mark.parametrize(
    ("content", "headers", "status", "told"),
    [
        (b"{", {}, 422, "Invalid JSON"),
        (b"[]", {}, 422, "object"),
        (b"{}", {}, 422, "rollouts: Field required"),
        (b'{"rollouts":[{"input":1,"config":{"max_attempts":0}}]}', {}, 422, "rollouts.0.config.max_attempts"),
        (b"[" * 100_000, {"max": "1"}, 413, "exceeds"),
        (b"{}", {"Content-Type": "text/plain"}, 415, "application/json"),
        (gzip.compress(b" " * 10_000_000, 1)[:LIMIT], {"Content-Encoding": "gzip"}, 413, "exceeds"),
        (b'{"rollouts":[]}', {"Idempotency-Key": "k" * 201}, 400, "longer than"),
    ],
)
async def test_what_is_wrong_with_a_request_is_said(
    http: httpx.AsyncClient, content: bytes, headers: dict[str, str], status: int, told: str
) -> None:
    headers = {"Content-Type": "application/json"} | headers
    refused = await http.post("queues/rollouts/enqueue", content=content, headers=headers)
    assert (refused.status_code, refused.headers["content-type"]) == (status, "application/json")
    assert told in refused.json()["detail"]
    assert (await http.get("statistics")).json()["total_rollouts"] == 0


async def test_an_unknown_path_and_a_wrong_method_say_so(server: LightningStoreServer) -> None:
    async with httpx.AsyncClient(base_url=server.endpoint) as http:
        for method, path, status in [
            ("GET", "/v1/agl/nothing", 404),
            ("GET", "/nothing", 404),
            ("POST", "/v1/agl/statistics", 404),
            ("DELETE", "/v1/agl/rollouts", 405),
            ("GET", "/v1/traces", 405),
        ]:
            refused = await http.request(method, path)
            assert refused.status_code == status
            assert f"{method} {path} is not served here" in refused.json()["detail"]


async def test_the_paths_of_agent_lightning_are_served(http: httpx.AsyncClient) -> None:
    queued = await http.post("queues/rollouts/enqueue", json={"rollouts": [{"input": {"n": 1}, "mode": None}]})
    assert queued.status_code == 201
    rollout_id = queued.json()[0]["rollout_id"]
    claimed = (await http.post("queues/rollouts/dequeue", json={"limit": 1, "worker_id": "w"})).json()[0]
    attempt_id = claimed["attempt"]["attempt_id"]
    assert (await http.post("queues/rollouts/dequeue")).json() == []
    ids = {"rollout_id": rollout_id, "attempt_id": attempt_id}
    assert (await http.post("spans/next", json=ids)).json() == {"sequence_id": 1}
    span = {**ids, "sequence_id": 1, "trace_id": "ab" * 16, "span_id": "cd" * 8, "name": "call"}
    stored, again = await http.post("spans", json=span), await http.post("spans", json=span)
    assert (stored.status_code, stored.json()["name"], again.json()) == (201, "call", None)
    page = (await http.get("spans", params={"rollout_id": rollout_id, "attempt_id": "latest", "limit": 5})).json()
    assert (len(page["items"]), page["limit"], page["offset"], page["total"]) == (1, 5, 0, 1)
    assert (await http.post("spans/search", json={"rollout_id": rollout_id, "name_contains": "z"})).json()["total"] == 0
    updated = await http.post(f"rollouts/{rollout_id}/attempts/latest", json={"status": "succeeded"})
    assert updated.json()["status"] == "succeeded"
    listed = (await http.get("rollouts", params={"status_in": ["failed", "succeeded"]})).json()
    assert [rollout["attempt"]["attempt_id"] for rollout in listed["items"]] == [attempt_id]
    assert (await http.get(f"rollouts/{rollout_id}/attempts")).json()["total"] == 1
    assert (await http.get(f"rollouts/{rollout_id}/attempts/latest")).json()["attempt_id"] == attempt_id
    waited = await http.post("waits/rollouts", json={"rollout_ids": [rollout_id], "timeout": None})
    assert [rollout["status"] for rollout in waited.json()] == ["succeeded"]
    added = await http.post("resources", json={"p": {"resource_type": "prompt_template", "template": "t"}})
    resources_id = added.json()["resources_id"]
    assert added.status_code == 201
    assert (await http.post(f"resources/{resources_id}", json={})).json()["version"] == 2
    assert (await http.get("resources/latest")).json()["resources_id"] == resources_id
    assert (await http.get("resources", params={"sort_by": "version"})).json()["total"] == 1
    assert (await http.post("workers/w")).json()["worker_id"] == "w"
    assert (await http.get("workers/none")).json() is None
    assert (await http.get("rollouts/none")).json() is None
    assert (await http.post("workers/search", json={"status_in": ["idle"]})).json()["total"] == 1
    assert (await http.post(f"rollouts/{rollout_id}", json={"metadata": {"k": 1}})).json()["metadata"] == {"k": 1}
    assert (await http.post(f"rollouts/{rollout_id}", json={"status": None})).status_code == 400
    assert (await http.post(f"rollouts/{rollout_id}/attempts")).status_code == 400
    assert (await http.post("rollouts", json={"input": "direct"})).status_code == 201


async def test_a_server_takes_the_settings_of_agent_lightnings(caplog: pytest.LogCaptureFixture) -> None:
    class Launcher:
        host, port = "127.0.0.1", 0

    page, other = {"Origin": "https://mine.example"}, {"Origin": "https://other.example"}
    made = LightningStoreServer(
        InMemoryLightningStore(),
        launcher_args=Launcher(),
        launch_mode="mp",
        n_workers=4,
        cors_allow_origins=page["Origin"],
    )
    assert "n_workers=4) has no effect" in caplog.text
    await made.start()
    assert made.endpoint.startswith("http://127.0.0.1:")
    async with httpx.AsyncClient(base_url=f"{made.endpoint}/v1/agl/") as client:
        answer = await client.get("statistics", headers=page)
        assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, page["Origin"])
        asked = {**page, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type"}
        assert (await client.options("rollouts", headers=asked)).status_code == 200
        assert (await client.get("statistics", headers=other)).status_code == 403
    await made.close()
    with pytest.raises(ValueError, match="launch_mode"):
        LightningStoreServer(InMemoryLightningStore(), launch_mode="fork")  # type: ignore[arg-type]  # refused


async def test_an_error_of_the_store_is_no_fault_of_the_server(serve: Serve) -> None:
    class Broken(InMemoryLightningStore):
        async def statistics(self):  # type: ignore[no-untyped-def]  # it never returns
            raise LightningStoreError("the disk is full: free some")

        async def get_latest_resources(self):  # type: ignore[no-untyped-def]  # it never returns
            raise NotImplementedError

        async def get_worker_by_id(self, worker_id: str):  # type: ignore[no-untyped-def]  # it never returns
            raise KeyError(worker_id)

    _, client = await serve(Broken())
    with pytest.raises(LightningStoreError, match="the disk is full: free some"):
        await client.statistics()
    with pytest.raises(NotImplementedError, match="get_latest_resources"):
        await client.get_latest_resources()
    with pytest.raises(LightningStoreError, match="its log says why"):
        await client.get_worker_by_id("w")


async def test_a_stopped_server_frees_its_port_keeps_its_store_and_can_be_started_again() -> None:
    server = LightningStoreServer(InMemoryLightningStore(), port=0)
    with pytest.raises(RuntimeError, match="no port"):
        _ = server.endpoint
    before = set(threading.enumerate())
    await server.start()
    await server.start()
    address = server.endpoint
    await server.stop()
    await server.stop()
    assert not [thread for thread in set(threading.enumerate()) - before if thread.name == "store server"]
    await server.enqueue_rollout("a")
    again = LightningStoreServer(server.store, port=int(address.rpartition(":")[2]))
    await again.start()
    await server.start()
    for endpoint in (address, server.endpoint):
        client = LightningStoreClient(endpoint)
        assert (await client.statistics())["total_rollouts"] == 1
        assert await client.wait_for_work(5) is True
        await client.close()
    await again.close()
    await server.stop()


async def test_a_wait_whose_client_has_gone_is_given_up(serve: Serve) -> None:
    given_up = threading.Event()

    class Watched(InMemoryLightningStore):
        async def wait_for_work(self, timeout: float) -> bool:
            try:
                return await super().wait_for_work(timeout)
            except asyncio.CancelledError:
                given_up.set()
                raise

    server, _ = await serve(Watched())
    with pytest.raises(httpx.ReadTimeout):
        async with httpx.AsyncClient(timeout=httpx.Timeout(30, read=0.1)) as http:
            await http.post(f"{server.endpoint}/v1/agl/waits/work", json={"timeout": 20})
    assert await asyncio.to_thread(given_up.wait, 60)


async def test_a_task_that_is_not_json_is_refused_at_the_server_and_fails_when_it_went_past_it(
    server: LightningStoreServer, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ValueError, match=r"^input\.image cannot be sent, since it is not JSON"):
        await server.enqueue_rollout({"image": object()})
    smuggled = await server.store.enqueue_rollout({"image": object()})
    await server.enqueue_rollout("good")
    client = LightningStoreClient(server.endpoint)
    with caplog.at_level(logging.ERROR):
        claimed = await client.dequeue_many_rollouts(limit=2)
    assert [rollout.input for rollout in claimed] == ["good"]
    lost = await server.get_latest_attempt(smuggled.rollout_id)
    assert lost is not None
    assert lost.status == "failed"
    assert "image" in lost.metadata["error"]
    await client.close()


def test_every_wrapper_offers_the_methods_of_the_contract_with_their_signatures() -> None:
    for name in STORE_METHODS:
        for kind in (LightningStoreServer, LightningStoreClient, LightningStoreThreaded):
            own, contract = getattr(kind, name), getattr(LightningStore, name)
            assert inspect.iscoroutinefunction(own)
            assert inspect.signature(own) == inspect.signature(contract)
        for kind in (LightningStoreServer, LightningStoreThreaded):
            assert getattr(kind, name) is not getattr(LightningStore, name)


async def test_no_body_of_json_makes_the_server_fail(
    server: LightningStoreServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "HOLD_SECONDS", 0.01)
    posts = [route for route in routes.ROUTES if route.method == "POST"]
    fields = sorted({name for route in posts if route.request for name in route.request.model_fields})
    values = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.lists(st.none() | st.text())
    bodies = values | st.dictionaries(st.sampled_from(fields), values | st.dictionaries(st.text(), values))

    @seed(0)
    @settings(max_examples=100, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(route=st.sampled_from(posts), body=bodies)
    def send(route: Route, body: Any) -> None:
        json_type = {"Content-Type": "application/json"}
        response = client.post(f"/v1/agl/{route.path}", content=json.dumps(body), headers=json_type)
        assert response.status_code < 500, response.text

    with httpx.Client(base_url=server.endpoint) as client:
        await asyncio.to_thread(send)


async def test_scrapes_that_come_together_count_the_contents_of_the_store_once(serve: Serve) -> None:
    class Counted(InMemoryLightningStore):
        counts = 0

        async def statistics(self) -> LightningStoreStatistics:
            self.counts += 1
            await asyncio.sleep(0.5)
            return await super().statistics()

    store = Counted()
    server, _ = await serve(store)
    async with httpx.AsyncClient(base_url=server.endpoint, timeout=20) as http:
        answers = await asyncio.gather(*(http.get("/metrics") for _ in range(20)))
        assert store.counts < 5
        before = store.counts
        await http.get("/metrics")
        assert store.counts == before + 1
    assert {answer.status_code for answer in answers} == {200}
