"""The client of a store server: lost answers, servers that go away, processes, threads, waiting, values."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import math
import multiprocessing
import pickle
from collections.abc import AsyncIterator
from typing import Any

import pytest

from mini_agentic_rl.errors import UserError
from mini_agentic_rl.store import (
    InMemoryLightningStore,
    LightningStore,
    LightningStoreClient,
    LightningStoreError,
    LightningStoreServer,
)
from mini_agentic_rl.store.http import routes
from mini_agentic_rl.store.http.wire_json import encode
from mini_agentic_rl.types import EnqueueRolloutRequest, Rollout, Span

from .conftest import Serve
from .test_contract import span_of


@pytest.fixture
async def server(serve: Serve) -> LightningStoreServer:
    return (await serve())[0]


@pytest.fixture
async def client(server: LightningStoreServer) -> AsyncIterator[LightningStoreClient]:
    made = LightningStoreClient(server.endpoint, retry_seconds=10)
    yield made
    await made.close()


async def test_an_address_is_told_as_agent_lightning_does_and_taken_so_too(server: LightningStoreServer) -> None:
    client = LightningStoreClient(f"{server.endpoint}/v1/agl/", retry_delays=(0.1, 0.2), health_retry_delays=())
    assert client.server_address == f"{server.endpoint}/v1/agl"
    assert client.server_address_root == server.endpoint
    assert (await client.statistics())["total_rollouts"] == 0
    again = pickle.loads(pickle.dumps(client))
    assert (again.server_address, again._settings["retry_seconds"]) == (client.server_address, pytest.approx(0.3))
    await client.close()


class LossyProxy:
    """Passes requests on to a server, and loses the answers to some: it hangs up instead."""

    def __init__(self, server: LightningStoreServer) -> None:
        self._upstream = int(server.endpoint.rpartition(":")[2])
        self.lose = 0
        self.lost = 0

    async def __aenter__(self) -> LossyProxy:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._upstream)
        there = asyncio.create_task(self._pass_on(reader, up_writer))
        while answer := await up_reader.read(65536):
            if self.lose > 0 and b"\r\n\r\n" in answer and b'{"status":"ok"}' not in answer:
                self.lose -= 1
                self.lost += 1
                break
            writer.write(answer)
        there.cancel()
        for one in (writer, up_writer):
            one.close()
            with contextlib.suppress(OSError):
                await one.wait_closed()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)


async def test_an_answer_that_is_lost_is_given_again_and_nothing_is_done_twice(server: LightningStoreServer) -> None:
    async with LossyProxy(server) as proxy:
        client = LightningStoreClient(proxy.address, retry_seconds=10)
        await client.statistics()
        proxy.lose = 1
        queued = await client.enqueue_many_rollouts([EnqueueRolloutRequest(input=n) for n in range(3)])
        assert (await server.query_rollouts()).total == 3
        proxy.lose = 2
        claimed = await client.dequeue_many_rollouts(limit=2, worker_id="w")
        assert [rollout.rollout_id for rollout in claimed] == [rollout.rollout_id for rollout in queued[:2]]
        assert (await server.query_rollouts(status_in=["preparing"])).total == 2
        span = span_of(claimed[0])
        proxy.lose = 1
        assert await client.add_span(span) == span
        assert await client.add_span(span) is None
        assert proxy.lost == 4
        await client.close()


async def test_a_request_that_is_asked_again_while_it_is_carried_out_gets_the_one_answer(serve: Serve) -> None:
    class Slow(InMemoryLightningStore):
        async def dequeue_many_rollouts(self, *, limit: int = 1, worker_id: str | None = None):  # type: ignore[no-untyped-def]  # as that of the store
            await asyncio.sleep(0.5)
            return await super().dequeue_many_rollouts(limit=limit, worker_id=worker_id)

    server, impatient = await serve(Slow(), request_timeout=0.2, retry_seconds=10)
    await server.enqueue_many_rollouts([EnqueueRolloutRequest(input=n) for n in range(2)])
    claimed = await impatient.dequeue_rollout("w")
    assert claimed is not None
    assert (claimed.input, (await server.query_rollouts(status_in=["queuing"])).total) == (0, 1)


async def test_calls_go_on_when_the_server_comes_back(
    server: LightningStoreServer, caplog: pytest.LogCaptureFixture
) -> None:
    client = LightningStoreClient(server.endpoint, retry_seconds=20)
    await client.enqueue_rollout("before")
    address = server.endpoint
    await server.stop()
    calling = asyncio.create_task(client.enqueue_rollout("meanwhile"))
    waiting = asyncio.create_task(client.wait_for_rollouts(rollout_ids=[], timeout=1))
    while "does not answer" not in caplog.text:
        await asyncio.sleep(0.05)
    assert not calling.done()
    back = LightningStoreServer(server.store, port=int(address.rpartition(":")[2]))
    await back.start()
    assert (await calling).input == "meanwhile"
    assert await waiting == []
    assert [rollout.input for rollout in await client.query_rollouts()] == ["before", "meanwhile"]
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert [("does not answer" in text, "answers again" in text) for text in said] == [(True, False), (False, True)]
    assert "trying for 20 s" in said[0]
    await client.close()
    await back.stop()


async def test_a_server_that_cannot_be_reached_is_one_error_that_names_the_settings() -> None:
    client = LightningStoreClient("127.0.0.1:9", retry_seconds=0.3)
    with pytest.raises(LightningStoreError, match=r"127\.0\.0\.1:9 did not answer for 0\.3 s.*AGL_SERVER_HOST"):
        await asyncio.wait_for(client.statistics(), 60)
    await client.close()
    with pytest.raises(LightningStoreError, match="closed"):
        await client.statistics()
    for address in ("ftp://there", "http://", "http://there:port"):
        with pytest.raises(UserError, match="address"):
            LightningStoreClient(address)


async def test_something_else_that_answers_is_an_error() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n<html/>")
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as other:
        client = LightningStoreClient(f"http://127.0.0.1:{other.sockets[0].getsockname()[1]}")
        with pytest.raises(LightningStoreError, match="no store server"):
            await client.get_latest_resources()
        await client.close()


async def test_a_claim_that_nobody_waits_for_any_more_is_given_back(serve: Serve) -> None:
    class Slow(InMemoryLightningStore):
        async def dequeue_many_rollouts(self, *, limit: int = 1, worker_id: str | None = None):  # type: ignore[no-untyped-def]  # as that of the store
            claimed = await super().dequeue_many_rollouts(limit=limit, worker_id=worker_id)
            await asyncio.sleep(0.2)
            return claimed

    _, client = await serve(Slow())
    queued = await client.enqueue_rollout("a")
    claiming = asyncio.create_task(client.dequeue_rollout("w"))
    await asyncio.sleep(0.1)
    claiming.cancel()
    with pytest.raises(asyncio.CancelledError):
        await claiming
    assert await client.wait_for_work(5)
    again = await client.dequeue_rollout("w")
    assert again is not None
    assert (again.rollout_id, again.attempt.sequence_id) == (queued.rollout_id, 2)


async def test_a_cancelled_claim_of_a_server_that_is_gone_leaves_no_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    client = LightningStoreClient("http://127.0.0.1:9", retry_seconds=0.3)
    claiming = asyncio.create_task(client.dequeue_rollout("w"))
    await asyncio.sleep(0.1)
    claiming.cancel()
    await asyncio.gather(claiming, return_exceptions=True)
    await asyncio.sleep(0.6)  # until it is given up
    await client.close()
    gc.collect()
    assert "never retrieved" not in caplog.text


async def test_waiting_goes_on_over_several_requests(
    client: LightningStoreClient, server: LightningStoreServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "HOLD_SECONDS", 0.05)
    rollouts = [await client.start_rollout(n) for n in range(3)]
    ids = [rollout.rollout_id for rollout in rollouts]
    waiting = asyncio.create_task(client.wait_for_rollouts(rollout_ids=[*ids, ids[0]]))
    working = asyncio.create_task(client.wait_for_work(10))
    for rollout_id in reversed(ids):
        await asyncio.sleep(0.12)
        assert not waiting.done()
        await server.update_attempt(rollout_id, "latest", status="succeeded")
    assert [rollout.rollout_id for rollout in await waiting] == ids
    assert not working.done()
    await server.enqueue_rollout("work")
    assert await working is True


async def test_many_calls_at_once_take_turns_and_those_that_wait_for_work_ask_once(serve: Serve) -> None:
    class Counting(InMemoryLightningStore):
        under_way = most = asked = 0

        async def query_workers(self, *args: Any, **kwargs: Any) -> Any:
            Counting.under_way += 1
            Counting.most = max(Counting.most, Counting.under_way)
            await asyncio.sleep(0.005)
            Counting.under_way -= 1
            return await super().query_workers(*args, **kwargs)

        async def wait_for_work(self, timeout: float) -> bool:
            Counting.asked += 1
            return await super().wait_for_work(timeout)

    _, client = await serve(Counting())
    waiting = [asyncio.create_task(client.wait_for_work(600)) for _ in range(100)]
    hasty = [asyncio.create_task(client.wait_for_work(0.01)) for _ in range(10)]
    await asyncio.gather(*(client.query_workers() for _ in range(150)))
    assert 1 < Counting.most <= 48
    assert not any(await asyncio.gather(*hasty))
    assert not any(one.done() for one in waiting)
    waiting[0].cancel()
    await client.enqueue_rollout("work")
    assert await asyncio.gather(*waiting[1:]) == [True] * 99
    assert Counting.asked <= 3


async def test_a_server_without_heartbeats_of_many_hears_of_one_after_the_other(client: LightningStoreClient) -> None:
    client._not_served.add(routes.route_of("update_many_workers"))
    await client.update_many_workers({"a": {"n": 1}, "b": {}})
    found = await client.query_workers()
    assert {one.worker_id: one.heartbeat_stats for one in found} == {"a": {"n": 1}, "b": {}}


async def test_ids_may_hold_any_text(client: LightningStoreClient) -> None:
    for odd in ("a/b", "..", ".", "ä ?#%", "a%2Fb", "x" * 500, "\u2028", "search?"):
        await _use_as_id(client, odd)


async def _use_as_id(client: LightningStoreClient, odd: str) -> None:
    await client.update_worker(odd, {"k": 1})
    worker = await client.get_worker_by_id(odd)
    assert worker is not None
    assert worker.worker_id == odd
    assert (await client.update_resources(odd, {})).resources_id == odd
    assert await client.get_resources_by_id(odd) is not None
    assert await client.get_rollout_by_id(odd) is None
    assert list(await client.query_attempts(odd)) == []
    with pytest.raises(ValueError, match="no rollout"):
        await client.update_attempt(odd, odd, status="failed")
    assert (await client.query_resources(resources_id=odd)).total == 1


async def test_what_cannot_be_sent_is_named(client: LightningStoreClient) -> None:
    with pytest.raises(ValueError, match=r"^rollouts\[1\]\.input\.images\[0\] cannot be sent, since it is not JSON"):
        await client.enqueue_many_rollouts(
            [EnqueueRolloutRequest(input="good"), EnqueueRolloutRequest(input={"images": [object()]})]
        )
    with pytest.raises(ValueError, match=r"^heartbeat_stats\.x cannot"):
        await client.update_worker("w", {"x": b"\xff"})
    circle: list[object] = []
    circle.append(circle)
    with pytest.raises(ValueError, match="cannot be sent, since it is not JSON: it contains itself"):
        await client.start_rollout(circle)
    assert (await client.statistics())["total_rollouts"] == 0
    with pytest.raises(ValueError, match=r"a\[1\].b cannot be sent"):
        encode({"a": ["x" * 100_000, {"b": object()}]}, "")


def _claim_one(store: LightningStore, answers: multiprocessing.Queue[tuple[str, str | None]]) -> None:
    async def work() -> str | None:
        claimed = await store.dequeue_rollout("process")
        return None if claimed is None else claimed.rollout_id

    answers.put((type(store).__name__, asyncio.run(work())))


@pytest.mark.parametrize("method", ["fork", "spawn"])
async def test_server_and_client_can_be_handed_to_other_processes(
    client: LightningStoreClient, server: LightningStoreServer, method: str
) -> None:
    if method not in multiprocessing.get_all_start_methods():
        pytest.skip(f"no {method} here: that stores can be handed to such processes is left unchecked")
    context = multiprocessing.get_context(method)
    stores = {"fork": (client, server), "spawn": (client,)}[method]
    answers = context.Queue()
    for store in stores:
        queued = await client.enqueue_rollout("a")
        process = context.Process(target=_claim_one, args=(store, answers))
        process.start()
        name, rollout_id = await asyncio.to_thread(answers.get, timeout=60)
        await asyncio.to_thread(process.join)
        assert (name, rollout_id, process.exitcode) == (type(store).__name__, queued.rollout_id, 0)
    # this process goes on with its own connections
    assert (await client.query_rollouts(status_in=["preparing"])).total == len(stores)


async def test_a_pickled_server_is_a_client_with_its_key(serve: Serve) -> None:
    server, _ = await serve(api_key="secret")
    copy = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(server))))
    assert isinstance(copy, LightningStoreClient)
    await copy.enqueue_rollout("a")
    assert (await server.statistics())["total_rollouts"] == 1
    await copy.close()


def test_a_large_model_is_written_with_its_infinities_and_its_extra_fields():
    rollout = Rollout(rollout_id="r", input={"x": [math.inf] * 20_000}, start_time=1.0, status="queuing", mode="train")
    written = json.loads(encode([rollout], ""))
    assert written == [rollout.model_dump()]
    assert written[0]["input"]["x"][0] == math.inf
    span = Span.from_attributes(attributes={"a": "b" * 90_000}, rollout_id="r", attempt_id="a", sequence_id=1)
    span = Span.model_validate({**span.model_dump(), "extra": [1]})
    assert json.loads(encode(span, "")) == json.loads(span.model_dump_json())
