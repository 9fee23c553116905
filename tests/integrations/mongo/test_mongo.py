"""The store in MongoDB: the tests of the store contract, and what only this store can do or suffer."""

from __future__ import annotations

import asyncio
import inspect
import logging
import pickle
import signal
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.errors import OperationFailure

from mini_agentic_rl.store import LightningStore, LightningStoreError, MongoLightningStore
from mini_agentic_rl.types import AttemptedRollout, EnqueueRolloutRequest, RolloutConfig
from store import test_concurrency, test_contract, test_health, test_listings, test_open
from store.conftest import MAKERS, opened_store, pass_time, set_clock
from store.test_contract import check_reopened, span_of
from store.test_properties import StoreMachine, run_machine

from .mongo_server import MongoServer, mongo_url, needs_mongo, needs_own_mongo, new_database

__all__ = ["pass_time", "set_clock"]

pytestmark = needs_mongo

MAKERS["mongo"] = lambda folder: MongoLightningStore(mongo_url(), new_database(), scan_debounce_seconds=0.0)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[LightningStore]:
    async with opened_store("mongo", tmp_path) as opened:
        yield opened


for _module in (test_concurrency, test_contract, test_health, test_listings, test_open):
    for _name, _test in vars(_module).items():
        # Eight threads take half a minute here; two stores claim below.
        if _name.startswith("test_eight_threads"):
            continue
        if _name.startswith("test_") and "store" in inspect.signature(_test).parameters:
            globals()[_name] = _test


def test_the_store_and_the_model_of_the_contract_never_differ() -> None:
    run_machine(lambda: StoreMachine("mongo"), 1, derandomize=True)


@pytest.fixture
def database() -> str:
    return new_database()


@pytest.fixture
def client() -> Iterator[MongoClient[Any]]:
    with MongoClient(mongo_url()) as made:
        yield made


@contextmanager
def failing(client: MongoClient[Any], *commands: str, times: int = 1, **how: Any) -> Iterator[None]:
    """The server answers the next `times` of these commands as `how` says."""
    data = {"failCommands": list(commands), **how}
    try:
        client.admin.command("configureFailPoint", "failCommand", mode={"times": times}, data=data)
    except OperationFailure as error:
        pytest.skip(f"the server has no failpoints, so what an error of it leads to is left unchecked: {error}")
    yield
    client.admin.command("configureFailPoint", "failCommand", mode="off")


async def test_a_reopened_store_holds_what_it_held(database: str) -> None:
    await check_reopened(MongoLightningStore(mongo_url(), database), lambda: MongoLightningStore(mongo_url(), database))


async def test_a_pickled_store_opens_the_same_database(database: str) -> None:
    store = MongoLightningStore(mongo_url(), database, timeout_seconds=20)
    queued = await store.enqueue_rollout("a")
    other = pickle.loads(pickle.dumps(store))
    claimed = await other.dequeue_rollout()
    assert claimed.rollout_id == queued.rollout_id
    await other.close()
    await store.close()


async def test_a_log_of_everything_holds_no_text_of_an_agent(database: str, caplog: pytest.LogCaptureFixture) -> None:
    """Whoever logs everything, from the root down, has not asked for what agents said."""
    caplog.set_level(logging.DEBUG)  # of the root
    store = MongoLightningStore(mongo_url(), database)
    await store.enqueue_rollout({"question": "a secret of the task"})
    claimed = await store.dequeue_rollout()
    assert claimed is not None
    await store.add_span(span_of(claimed, attributes={"said": "a secret of the agent"}))
    await store.query_spans(claimed.rollout_id)
    await store.close()
    assert "pymongo" in {record.name.partition(".")[0] for record in caplog.records}, "it logs at this level"
    assert "a secret" not in caplog.text


async def test_what_is_too_large_for_a_document_is_refused_and_the_rest_goes_on(database: str) -> None:
    store = MongoLightningStore(mongo_url(), database)
    claimed = await store.start_rollout("a")
    large = span_of(claimed, attributes={"text": "x" * (16 * 1024 * 1024)})
    with pytest.raises(ValueError, match=f"span {large.span_id} takes .* make it smaller"):
        await store.add_span(large)
    with pytest.raises(ValueError, match="64 bits"):
        await store.add_span(span_of(claimed, sequence_id=2**70))
    assert await store.add_span(span_of(claimed)) is not None
    assert (await store.statistics())["total_spans"] == 1
    await store.close()


async def test_a_database_of_another_schema_version_is_refused(client: MongoClient[Any], database: str) -> None:
    await MongoLightningStore(mongo_url(), database).close()
    client[database].agl_state.update_one({"_id": "schema"}, {"$set": {"version": 99}})
    with pytest.raises(LightningStoreError, match="schema version 99"):
        MongoLightningStore(mongo_url(), database)


async def test_several_processes_may_make_the_database_at_once_beside_other_collections(
    client: MongoClient[Any], database: str
) -> None:
    client[database].rollouts.insert_one({"_id": 1, "rollout_id": "theirs"})
    with ThreadPoolExecutor(4) as threads:
        stores = list(threads.map(lambda _: MongoLightningStore(mongo_url(), database), range(4)))
    await asyncio.gather(*(store.enqueue_rollout(n) for n, store in enumerate(stores)))
    assert sorted([rollout.input for rollout in await stores[0].query_rollouts()]) == [0, 1, 2, 3]
    assert list(client[database].rollouts.find()) == [{"_id": 1, "rollout_id": "theirs"}]
    await asyncio.gather(*(store.close() for store in stores))


async def test_two_processes_claim_each_rollout_once(database: str) -> None:
    store, other = (MongoLightningStore(mongo_url(), database) for _ in range(2))
    queued = await store.enqueue_many_rollouts([EnqueueRolloutRequest(input=n) for n in range(20)])

    async def claim_all(claiming: MongoLightningStore, first: AttemptedRollout | None) -> list[str]:
        assert first is not None
        claimed = [first.rollout_id]
        while (rollout := await claiming.dequeue_rollout()) is not None:
            claimed.append(rollout.rollout_id)
        return claimed

    # The first claims are awaited, so that one store does not claim all while the other still connects.
    firsts = await asyncio.gather(store.dequeue_rollout(), other.dequeue_rollout())
    claims = await asyncio.gather(*map(claim_all, (store, other), firsts))
    assert sorted(claims[0] + claims[1]) == sorted(rollout.rollout_id for rollout in queued)
    await store.close()
    await other.close()


async def test_a_wait_is_woken_by_what_another_process_writes(database: str) -> None:
    store, other = (MongoLightningStore(mongo_url(), database) for _ in range(2))
    rollout = await other.start_rollout("a")
    waits = [
        asyncio.create_task(store.wait_for_work(3600)),
        asyncio.create_task(store.wait_for_rollouts(rollout_ids=[rollout.rollout_id], timeout=3600)),
    ]
    await asyncio.sleep(0.5)
    assert not any(wait.done() for wait in waits)
    await other.enqueue_rollout("b")
    await other.update_attempt(rollout.rollout_id, "latest", status="succeeded")
    work, ended = await asyncio.wait_for(asyncio.gather(*waits), 60)
    assert (work, [each.status for each in ended]) == (True, ["succeeded"])
    await store.close()
    await other.close()


async def test_a_read_shows_one_state(database: str) -> None:
    store, other = (MongoLightningStore(mongo_url(), database) for _ in range(2))
    started = await store.start_rollout("a", config=RolloutConfig(max_attempts=10_000, retry_condition=["failed"]))

    async def write() -> None:
        while True:
            await other.update_attempt(started.rollout_id, "latest", status="failed")
            await other.start_attempt(started.rollout_id)

    writing = asyncio.create_task(write())
    seen: Counter[tuple[str, str]] = Counter()
    while len(seen) < 2 or seen.total() < 20:
        rollout = await store.get_rollout_by_id(started.rollout_id)
        assert isinstance(rollout, AttemptedRollout)
        seen[rollout.status, rollout.attempt.status] += 1
    writing.cancel()
    assert set(seen) == {("preparing", "preparing"), ("requeuing", "failed")}
    await store.close()
    await other.close()


async def test_a_store_locked_for_too_long_gives_an_error_that_names_the_setting(
    client: MongoClient[Any], database: str
) -> None:
    await MongoLightningStore(mongo_url(), database).close()
    store = MongoLightningStore(mongo_url(), database, timeout_seconds=1)
    with client.start_session() as session, session.start_transaction():
        client[database].agl_state.update_one({"_id": "lock"}, {"$inc": {"turn": 1}}, session=session)
        with pytest.raises(LightningStoreError, match=r"locked .* timeout_seconds"):
            await store.enqueue_rollout("a")
        session.abort_transaction()
    await store.enqueue_rollout("b")
    assert [rollout.input for rollout in await store.query_rollouts()] == ["b"]
    await store.close()


@pytest.mark.parametrize(
    "trouble",
    [
        {"commands": ["insert"], "times": 3, "errorCode": 112, "errorLabels": ["TransientTransactionError"]},
        {"commands": ["update"], "times": 1, "closeConnection": True},
        {"commands": ["commitTransaction"], "times": 3, "closeConnection": True},
        {"commands": ["commitTransaction"], "times": 2, "writeConcernError": {"code": 64, "errmsg": "late"}},
    ],
    ids=["conflict", "lost in a transaction", "lost in a commit", "unconfirmed commit"],
)
async def test_a_transaction_that_met_trouble_is_committed_once(
    client: MongoClient[Any], database: str, trouble: dict[str, Any]
) -> None:
    store = MongoLightningStore(mongo_url(), database)
    with failing(client, *trouble.pop("commands"), **trouble):
        queued = await store.enqueue_rollout("a")
    assert [rollout.rollout_id for rollout in await store.query_rollouts()] == [queued.rollout_id]
    assert [rollout.rollout_id for rollout in await store.dequeue_many_rollouts(limit=9)] == [queued.rollout_id]
    await store.close()


async def test_a_slow_server_gives_an_error_that_names_the_setting(client: MongoClient[Any], database: str) -> None:
    await MongoLightningStore(mongo_url(), database).close()
    store = MongoLightningStore(mongo_url(), database, timeout_seconds=1)
    with (
        failing(client, "find", blockConnection=True, blockTimeMS=3000),
        pytest.raises(LightningStoreError, match="took more than 1 s; raise timeout_seconds"),
    ):
        await store.get_rollout_by_id("ro-none")
    assert await store.get_rollout_by_id("ro-none") is None
    await store.close()


@needs_own_mongo
async def test_what_was_acknowledged_survives_the_sudden_death_of_the_server_and_the_rest_goes_on(
    tmp_path: Path,
) -> None:
    server = MongoServer(tmp_path, "--sync-on-commit")
    server.start()
    try:
        store = MongoLightningStore(server.url)
        acknowledged: list[str] = []

        async def write(until: int) -> None:
            while len(acknowledged) < until:
                acknowledged.append((await store.enqueue_rollout("task")).rollout_id)

        await write(10)
        writing = asyncio.create_task(write(30))
        await asyncio.to_thread(server.stop, signal.SIGKILL)
        assert 10 <= len(acknowledged) < 30
        await asyncio.to_thread(server.start)
        await writing
        stored = [rollout.rollout_id for rollout in await store.query_rollouts()]
        assert [rollout_id for rollout_id in stored if rollout_id in acknowledged] == acknowledged
        assert [rollout.rollout_id for rollout in await store.dequeue_many_rollouts(limit=1000)] == stored
        await store.close()
    finally:
        server.stop(signal.SIGKILL)


@needs_own_mongo
def test_a_standalone_server_is_refused_with_the_way_to_a_replica_set(tmp_path: Path) -> None:
    server = MongoServer(tmp_path, "--standalone")
    server.start()
    try:
        with pytest.raises(LightningStoreError, match=r"mongod --replSet rs0.*rs\.initiate\(\)") as caught:
            MongoLightningStore(server.url)
        assert "\n" not in str(caught.value)
    finally:
        server.stop(signal.SIGKILL)


def test_a_server_that_is_not_there_is_named_without_the_password() -> None:
    with pytest.raises(LightningStoreError, match="no primary of a MongoDB replica set answered") as caught:
        MongoLightningStore("mongodb://me:secret@127.0.0.1:9/?directConnection=true", timeout_seconds=0.2)
    assert "127.0.0.1:9" in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_wrong_password_is_an_error_that_does_not_show_it() -> None:
    url = mongo_url().replace("mongodb://", "mongodb://me:secret@", 1)
    with pytest.raises(LightningStoreError, match="the user or the password in the URL is wrong") as caught:
        MongoLightningStore(url, timeout_seconds=5)
    assert "secret" not in str(caught.value)


def test_a_url_or_a_database_name_that_cannot_be_used_is_refused() -> None:
    for url in ("postgresql://me:secret@host/db", "store.db", "mongodb://", "mongodb://host:x"):
        with pytest.raises(ValueError, match="store") as caught:
            MongoLightningStore(url)
        assert "secret" not in str(caught.value)
    with pytest.raises(ValueError, match="database name"):
        MongoLightningStore(mongo_url(), "a b/c")
