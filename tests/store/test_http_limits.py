"""The bounds of a store server as its clients meet them: they come again, waits take no place, a stop loses nothing."""

from __future__ import annotations

import asyncio
import json
import pickle
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from mini_agentic_rl.store import (
    InMemoryLightningStore,
    LightningStoreError,
    LightningStoreServer,
)
from mini_agentic_rl.store.http.wire_json import MOST_ITEMS
from mini_agentic_rl.store.ledger import Ledger
from mini_agentic_rl.store.ledger_store import ROWS_AT_ONCE
from mini_agentic_rl.types import EnqueueRolloutRequest, Rollout

from .conftest import Serve, make_store
from .postgres import needs_postgres


class SlowStore(InMemoryLightningStore):
    """A store whose rollouts take a moment to be queued."""

    async def enqueue_many_rollouts(self, rollouts: Any) -> list[Rollout]:
        await asyncio.sleep(0.3)
        return list(await super().enqueue_many_rollouts(rollouts))


async def test_a_client_beyond_its_rate_comes_again_when_it_is_told_to(serve: Serve) -> None:
    server, client = await serve(limits={"max_requests_per_minute": 60})
    async with httpx.AsyncClient(base_url=server.endpoint) as http:
        while (await http.get("/v1/agl/statistics")).status_code != httpx.codes.TOO_MANY_REQUESTS:
            pass
    await client.enqueue_rollout("next")
    assert (await server.query_rollouts()).total == 1
    _, client = await serve(limits={"max_requests_per_minute": 1}, retry_seconds=0.2)
    await client.statistics()
    with pytest.raises(LightningStoreError, match=r"too few requests for its clients.*max_requests_per_minute"):
        await client.statistics()


async def test_requests_that_wait_take_no_place(serve: Serve) -> None:
    server, client = await serve(limits={"max_concurrent_requests": 20})
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


KEPT = ["sqlite", pytest.param("postgres", marks=needs_postgres)]


async def _ask(server: LightningStoreServer, path: str, body: Any, key: str | None = None) -> httpx.Response:
    headers = {} if key is None else {"Idempotency-Key": key}
    async with httpx.AsyncClient(base_url=f"{server.endpoint}/v1/agl/", timeout=60) as http:
        return await http.post(path, json=body, headers=headers)


@pytest.mark.parametrize("call", ["enqueue", "dequeue", "delete"])
async def test_others_write_between_the_parts_of_a_long_request(serve: Serve, call: str, tmp_path: Path):
    store = make_store("sqlite", tmp_path)
    server, _ = await serve(store)
    queued = await store.enqueue_many_rollouts([EnqueueRolloutRequest(input=number) for number in range(400)])
    ids = [rollout.rollout_id for rollout in queued]
    path, body, count = {
        "enqueue": ("queues/rollouts/enqueue", {"rollouts": [{"input": number} for number in range(400)]}, 400),
        "dequeue": ("queues/rollouts/dequeue", {"limit": 1000}, 400),
        "delete": ("rollouts/delete", {"rollout_ids": ids}, 400),
    }[call]
    asked = asyncio.create_task(_ask(server, path, body))
    written: list[float] = []
    transactions = 0
    write = type(store)._write

    async def counted(self: Any, operation: Any, **options: Any) -> Any:
        nonlocal transactions
        transactions += options.get("rows", 1) > 1
        return await write(self, operation, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(store), "_write", counted)
        while not asked.done():
            await store.update_worker("neighbour")
            written.append(transactions)
            await asyncio.sleep(0)
    answer = await asked
    assert answer.is_success
    assert len(answer.json()) == count
    assert transactions >= 400 // ROWS_AT_ONCE
    assert len({seen for seen in written if 0 < seen < transactions}) > 1
    await store.close()


@pytest.mark.parametrize("kind", ["memory", *KEPT])
async def test_what_was_sent_with_a_key_is_done_once_though_the_server_was_killed(serve: Serve, kind, tmp_path: Path):
    store = make_store(kind, tmp_path)
    server, _ = await serve(store)
    begun = await store.start_rollout("begun")
    gone = [(await store.enqueue_rollout("gone")).rollout_id for _ in range(2)]
    await store.delete_rollouts(gone[:1])
    waiting = await store.start_rollout("waiting")
    ids = {"rollout_id": begun.rollout_id, "attempt_id": begun.attempt.attempt_id}
    span = {**ids, "sequence_id": 1, "trace_id": "0", "name": "a"}
    requests = [
        ("rollouts/delete", {"rollout_ids": gone}),
        ("queues/rollouts/enqueue", {"rollouts": [{"input": number} for number in range(150)]}),
        ("queues/rollouts/dequeue", {"limit": 100, "worker_id": "w"}),
        ("rollouts", {"input": "more"}),
        (f"rollouts/{begun.rollout_id}/attempts", None),
        (f"rollouts/{waiting.rollout_id}/attempts/latest", {"status": "failed"}),
        (f"rollouts/{begun.rollout_id}", {"status": "requeuing"}),
        ("spans", span | {"span_id": "one"}),
        ("spans/batch", {"spans": [span | {"span_id": name} for name in ("one", "two", "two", "three")]}),
        ("spans/next", ids),
        ("spans/next/batch", {"rollout_attempt_ids": [[*ids.values()]] * 3}),
        ("resources", {"p": {"resource_type": "prompt_template", "template": "t"}}),
        ("resources/mine", {}),
        ("workers/w", {"heartbeat_stats": {"a": 1}}),
    ]
    first = [await _ask(server, path, body, f"key {number}") for number, (path, body) in enumerate(requests)]
    assert all(answer.is_success for answer in first), [answer.text for answer in first]
    held = await store.statistics()
    # The same database, as another process opens it.
    again_opened = store if kind == "memory" else pickle.loads(pickle.dumps(store))
    server, _ = await serve(again_opened)
    again = [await _ask(server, path, body, f"key {number}") for number, (path, body) in enumerate(requests)]
    for before, after in zip(first, again, strict=True):
        assert (after.status_code, _ids_in(after.json())) == (before.status_code, _ids_in(before.json()))
    now = await server.store.statistics()
    assert {name: now[name] for name in held if name.startswith("total")} == {
        name: held[name] for name in held if name.startswith("total")
    }
    other = await _ask(server, *requests[1], key="another key")
    assert not {one["rollout_id"] for one in other.json()} & {one["rollout_id"] for one in first[1].json()}
    await store.close()
    await again_opened.close()


def _ids_in(answer: Any) -> Any:
    """Return what names things in an answer; their state may have changed since."""
    if isinstance(answer, list):
        return [_ids_in(one) for one in answer]
    if not isinstance(answer, dict):
        return answer
    named = {name: value for name, value in answer.items() if name.endswith("_id") and not name.startswith("current_")}
    return named | ({"attempt": _ids_in(answer["attempt"])} if isinstance(answer.get("attempt"), dict) else {})


async def test_a_long_request_that_fails_on_its_way_says_how_far_it_came_and_goes_on_from_there(
    serve: Serve, tmp_path: Path
):
    store = make_store("sqlite", tmp_path)
    server, _ = await serve(store)
    enqueue, parts = Ledger.enqueue_many_rollouts, []

    def failing(self: Ledger, requests: Any) -> Any:
        parts.append(len(requests))
        if len(parts) == 3:
            raise LightningStoreError("the disk is full")
        return enqueue(self, requests)

    body = {"rollouts": [{"input": number} for number in range(300)]}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Ledger, "enqueue_many_rollouts", failing)
        answer = await _ask(server, "queues/rollouts/enqueue", body, "k")
    assert (answer.status_code, answer.json()["error_type"]) == (503, "LightningStoreError")
    assert answer.json()["detail"] == "the disk is full (the first 128 of 300 had been written)"
    again = await _ask(server, "queues/rollouts/enqueue", body, "k")
    assert [rollout["input"] for rollout in again.json()] == list(range(300))
    assert (await store.query_rollouts(limit=0)).total == 300
    await store.close()


async def test_what_is_deleted_leaves_nothing_of_it_behind_a_key(serve: Serve, tmp_path: Path):
    server, _ = await serve(make_store("sqlite", tmp_path))
    queued = await _ask(server, "queues/rollouts/enqueue", {"rollouts": [{"input": "a secret word"}]}, "k")
    ids = [rollout["rollout_id"] for rollout in queued.json()]
    await _ask(server, "rollouts/delete", {"rollout_ids": ids})
    assert b"a secret word" not in b"".join(file.read_bytes() for file in tmp_path.iterdir())
    again = await _ask(server, "queues/rollouts/enqueue", {"rollouts": [{"input": "a secret word"}]}, "k")
    assert (again.status_code, again.json()) == (201, [])
    await server.store.close()


async def test_a_request_for_too_much_is_refused_by_the_name_of_its_bound(serve: Serve) -> None:
    server, _ = await serve()
    too_many = MOST_ITEMS + 1
    for path, name, value in (
        ("queues/rollouts/enqueue", "rollouts", [{"input": 1}] * too_many),
        ("queues/rollouts/dequeue", "limit", too_many),
        ("spans/next/batch", "rollout_attempt_ids", [["a", "b"]] * too_many),
        ("waits/rollouts", "rollout_ids", ["a"] * too_many),
        ("listings/rollouts", "limit", 10**9),
    ):
        refused = await _ask(server, path, {name: value})
        assert refused.status_code == 413
        assert refused.json()["detail"].startswith(f"{name}: ")
        assert f"at most {MOST_ITEMS}" in refused.json()["detail"]


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_a_long_answer_comes_in_parts_and_holds_what_there_was_when_it_began(serve: Serve, kind, tmp_path: Path):
    store = make_store(kind, tmp_path)
    server, client = await serve(store)
    queued = [EnqueueRolloutRequest(input="x" * 20_000, metadata={"n": number}) for number in range(200)]
    ids = [rollout.rollout_id for rollout in await store.enqueue_many_rollouts(queued)]
    for asked in (
        {},
        {"limit": 3},
        {"limit": 0},
        {"limit": 150, "offset": 30, "sort_order": "desc"},
        {"status_in": ["queuing"], "sort_by": "start_time"},
        {"rollout_id_in": ids[5:100]},
        {"rollout_id_in": []},
    ):
        expected, found = await store.query_rollouts(**asked), await client.query_rollouts(**asked)
        assert [(one.rollout_id, one.metadata) for one in found] == [(one.rollout_id, one.metadata) for one in expected]
        assert (found.limit, found.offset, found.total) == (expected.limit, expected.offset, expected.total)
    parts: list[int] = []
    address = f"{server.endpoint}/v1/agl/rollouts"
    async with (
        httpx.AsyncClient(timeout=60) as http,
        http.stream("GET", address, params={"status_in": "queuing"}) as got,
    ):
        assert got.headers["transfer-encoding"] == "chunked"
        body = b""
        async for part in got.aiter_bytes():
            if not parts:
                await store.dequeue_many_rollouts(limit=64)  # they are no longer what was asked for
                await store.enqueue_rollout("later")
            parts.append(len(part))
            body += part
    assert [rollout["rollout_id"] for rollout in json.loads(body)["items"]] == ids
    await store.close()
