"""The bounds of a store server as its clients meet them: they come again, waits take no place, a stop loses nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from mini_agentic_rl.store import (
    InMemoryLightningStore,
    LightningStoreClient,
    LightningStoreError,
    LightningStoreServer,
    StoreLimits,
)
from mini_agentic_rl.types import Rollout

Serve = Callable[..., Awaitable[tuple[LightningStoreServer, LightningStoreClient]]]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Serve a store within limits; return the server and a client of it."""
    opened: list[Any] = []

    async def make(store: Any = None, *, retry_seconds: float = 30.0, **limits: Any) -> Any:
        server = LightningStoreServer(store or InMemoryLightningStore(), port=0, limits=StoreLimits(**limits))
        await server.start()
        client = LightningStoreClient(server.endpoint, retry_seconds=retry_seconds)
        opened.extend((client, server))
        return server, client

    yield make
    for each in opened:
        await each.close()


class SlowStore(InMemoryLightningStore):
    """A store whose rollouts take a moment to be queued."""

    async def enqueue_many_rollouts(self, rollouts: Any) -> list[Rollout]:
        await asyncio.sleep(0.3)
        return list(await super().enqueue_many_rollouts(rollouts))


async def test_a_client_that_is_one_too_many_comes_again(serve: Serve) -> None:
    server, client = await serve(SlowStore(), max_concurrent_requests=1)
    queued = await asyncio.gather(*(client.enqueue_rollout(number) for number in range(2)))
    assert len({rollout.rollout_id for rollout in queued}) == 2
    assert (await server.query_rollouts()).total == 2


async def test_a_client_beyond_its_rate_comes_again_when_it_is_told_to(serve: Serve) -> None:
    server, client = await serve(max_requests_per_minute=60)
    async with httpx.AsyncClient(base_url=server.endpoint) as http:
        while (await http.get("/v1/agl/statistics")).status_code != httpx.codes.TOO_MANY_REQUESTS:
            pass
    await client.enqueue_rollout("next")
    assert (await server.query_rollouts()).total == 1


async def test_a_client_that_is_refused_for_too_long_says_which_bound_it_was(serve: Serve) -> None:
    _, client = await serve(max_requests_per_minute=1, retry_seconds=0.2)
    await client.statistics()
    with pytest.raises(LightningStoreError, match=r"too few requests for its clients.*max_requests_per_minute"):
        await client.statistics()


async def test_requests_that_wait_take_no_place(serve: Serve) -> None:
    server, client = await serve(max_concurrent_requests=20)
    rollout = await client.start_rollout("task")
    wait = {"rollout_ids": [rollout.rollout_id], "timeout": 3600}
    waits = [asyncio.create_task(client.wait_for_rollouts(**wait)) for _ in range(100)]
    while server._thread.admission.active < 100:
        await asyncio.sleep(0.01)
    async with asyncio.timeout(120):
        await client.update_attempt(rollout.rollout_id, "latest", status="succeeded")
        assert [len(ended) for ended in await asyncio.gather(*waits)] == [1] * 100


@asynccontextmanager
async def stopping(server: LightningStoreServer) -> AsyncIterator[None]:
    """Stop the server in the block's company."""
    stopped = asyncio.create_task(server.stop(10))
    while not server._thread.admission.draining:
        await asyncio.sleep(0.005)
    yield
    await stopped


async def test_a_server_that_stops_finishes_what_it_has_taken_and_refuses_the_rest(serve: Serve) -> None:
    server, client = await serve(SlowStore())
    waiting = asyncio.create_task(client.wait_for_work(20))
    taken = asyncio.create_task(client.enqueue_rollout("taken"))
    async with httpx.AsyncClient(base_url=server.endpoint) as http:
        await http.get("/v1/agl/health")
        while server._thread.admission.active < 2:
            await asyncio.sleep(0.005)
        async with stopping(server):
            refused = await http.post("/v1/agl/rollouts/search", json={})
            assert (refused.status_code, refused.json()["error_type"]) == (503, "ServerStopping")
            assert refused.headers["retry-after"]
    assert (await taken).input == "taken"
    assert (await server.query_rollouts()).total == 1
    await server.start()
    waiting.cancel()


async def test_clients_outlast_a_server_that_stops_and_comes_back(serve: Serve) -> None:
    made, _ = await serve()
    port = int(made.endpoint.rpartition(":")[2])
    await made.close()
    store = InMemoryLightningStore()
    server = LightningStoreServer(store, port=port)
    await server.start()
    client = LightningStoreClient(server.endpoint)
    calls = [asyncio.create_task(client.enqueue_rollout(number)) for number in range(50)]
    await asyncio.sleep(0)
    await server.stop()
    await server.start()
    assert len({rollout.rollout_id for rollout in await asyncio.gather(*calls)}) == 50
    assert (await store.query_rollouts()).total == 50
    await client.close()
    await server.close()
