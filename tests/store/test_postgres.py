"""What only the store in PostgreSQL can do or suffer."""

from __future__ import annotations

import asyncio
import logging
import random
import sys
import threading
import time
from collections.abc import Iterator

import psycopg
import pytest

from mini_agentic_rl.errors import MissingPackageError
from mini_agentic_rl.store import LightningStoreError, SqlLightningStore
from mini_agentic_rl.store.ledger import Ledger
from mini_agentic_rl.types import EnqueueRolloutRequest, Rollout

from .postgres import PASSWORD, PostgresServer, emptied_database, needs_postgres, new_database, server

pytestmark = needs_postgres


def _listeners(database: str) -> list[int]:
    """Sessions of a database that wait for notifications."""
    with psycopg.connect(database, autocommit=True) as connection:
        found = connection.execute(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN %'"
        )
        return [pid for (pid,) in found]


async def _until_listening(database: str, *, other_than: int = 0) -> int:
    while True:
        listening = [pid for pid in await asyncio.to_thread(_listeners, database) if pid != other_than]
        if listening:
            return listening[0]
        await asyncio.sleep(0.02)


async def test_every_way_to_write_the_url_reaches_the_same_database() -> None:
    url = emptied_database()
    store = SqlLightningStore(url)
    queued = await store.enqueue_rollout("a")
    for scheme in ("postgres", "postgresql+asyncpg"):
        other = SqlLightningStore(url.replace("postgresql", scheme, 1))
        assert await other.get_rollout_by_id(queued.rollout_id) == queued
        await other.close()
    await store.close()


@pytest.mark.parametrize(
    ("url", "says"),
    [
        (lambda: server().url("postgres", password="wrong-secret"), "refuses the user or the password"),
        (lambda: server().url("nowhere"), "createdb"),
        (lambda: "postgresql://u:wrong-secret@127.0.0.1:9/db", "does not answer; start it"),
        (lambda: "postgresql://u:x@wrong-secret@127.0.0.1:9/db", "does not answer; start it"),
    ],
    ids=["password", "database", "port", "@ in the password"],
)
def test_a_database_that_cannot_be_reached_gives_an_error_that_says_why_and_no_password(url, says: str) -> None:
    with pytest.raises(LightningStoreError, match=says) as raised:
        SqlLightningStore(url())
    for secret in ("wrong-secret", PASSWORD):
        assert secret not in f"{raised.value} {raised.value.__cause__} {raised.value.__context__}"


def test_a_driver_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(MissingPackageError, match=r"pip install 'mini-agentic-rl\[services\]'"):
        SqlLightningStore("postgresql://user:secret@127.0.0.1/db")


async def test_texts_are_ordered_and_compared_by_code_points_whatever_the_locale_of_the_database() -> None:
    server().execute("CREATE DATABASE foreign_locale TEMPLATE template0 LOCALE_PROVIDER icu ICU_LOCALE 'en-US'")
    store = SqlLightningStore(server().url("foreign_locale"))
    for worker_id in ("b", "A", "a", "B", "ä", "%"):
        await store.update_worker(worker_id)
    ordered = [worker.worker_id for worker in await store.query_workers(sort_by="worker_id")]
    assert ordered == ["%", "A", "B", "a", "b", "ä"]
    assert [worker.worker_id for worker in await store.query_workers(worker_id_contains="%")] == ["%"]
    await store.close()


async def test_tables_of_others_are_left_alone_but_half_a_store_is_refused() -> None:
    url = new_database()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE customers (name TEXT)")
        connection.execute("CREATE TABLE agl_workers (name TEXT)")
        with pytest.raises(LightningStoreError, match="not of a store"):
            SqlLightningStore(url)
        connection.execute("DROP TABLE agl_workers")
        await SqlLightningStore(url).close()
        connection.execute("UPDATE agl_schema SET version = 99")
        with pytest.raises(LightningStoreError, match="schema version 99"):
            SqlLightningStore(url)
        assert connection.execute("SELECT count(*) FROM customers").fetchall() == [(0,)]


async def test_a_writer_that_keeps_the_lock_gives_an_error_that_names_the_setting() -> None:
    url = emptied_database()
    store, writes = SqlLightningStore(url, busy_timeout_seconds=0.2), threading.Event()
    busy = asyncio.create_task(asyncio.to_thread(_in_slow_write, url, 1.0, writes))
    await asyncio.to_thread(writes.wait)
    with pytest.raises(LightningStoreError, match="raise busy_timeout_seconds"):
        await store.enqueue_rollout("a")
    assert await store.query_rollouts() is not None
    await busy
    await store.enqueue_rollout("b")
    assert [rollout.input for rollout in await store.query_rollouts()] == ["slow", "b"]
    await store.close()


def _in_slow_write(url: str, seconds: float, writes: threading.Event, **options: float) -> None:
    """Enqueue a rollout in a transaction that dawdles."""

    async def write() -> None:
        store = SqlLightningStore(url, **options)

        def slowly(ledger: Ledger) -> list[Rollout]:
            made = ledger.enqueue_many_rollouts([EnqueueRolloutRequest(input="slow")])
            writes.set()
            time.sleep(seconds)
            return made

        try:
            await store._write(slowly)
        finally:
            await store.close()

    asyncio.run(write())


async def test_a_writer_that_stops_amid_a_transaction_loses_the_lock_and_what_it_had_not_committed() -> None:
    url = emptied_database()
    store, writes = SqlLightningStore(url), threading.Event()
    stopped = asyncio.create_task(asyncio.to_thread(_in_slow_write, url, 2.0, writes, busy_timeout_seconds=0.3))
    await asyncio.to_thread(writes.wait)
    await store.enqueue_rollout("b")
    assert not stopped.done()
    with pytest.raises(LightningStoreError, match="undone"):
        await stopped
    assert [rollout.input for rollout in await store.query_rollouts()] == ["b"]
    await store.close()


async def test_a_wait_is_woken_by_a_notification_and_goes_on_when_its_connection_breaks(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mini_agentic_rl.store.sql.backends._LOOK_SECONDS", float("inf"))  # it is told, or never knows
    url = emptied_database()
    store, other = SqlLightningStore(url), SqlLightningStore(url)
    waiting = asyncio.create_task(store.wait_for_work(3600))
    session = await _until_listening(url)
    await other.enqueue_rollout("a")
    assert await asyncio.wait_for(waiting, 60) is True

    assert await store.dequeue_rollout() is not None
    waiting = asyncio.create_task(store.wait_for_work(3600))
    await asyncio.sleep(0)
    with caplog.at_level(logging.WARNING):
        server().execute(f"SELECT pg_terminate_backend({session})")
        await _until_listening(url, other_than=session)
    assert "no notifications of writes by other processes" in caplog.text
    assert PASSWORD not in caplog.text
    await other.enqueue_rollout("b")
    assert await asyncio.wait_for(waiting, 60) is True
    await other.close()
    await store.close()


@pytest.fixture(scope="module")
def own_server() -> Iterator[PostgresServer]:
    made = PostgresServer()
    made.start()
    yield made
    made.remove()


async def test_a_wait_bears_with_a_server_that_comes_back_and_not_with_one_that_stays_away(
    own_server: PostgresServer,
) -> None:
    own_server.execute("CREATE DATABASE waiting STRATEGY file_copy")
    store = SqlLightningStore(own_server.url("waiting"))
    rollout = await store.start_rollout("a")
    own_server.stop()
    with pytest.raises(LightningStoreError, match="does not answer"):
        await store.wait_for_rollouts(rollout_ids=[rollout.rollout_id], timeout=0.3)
    waiting = asyncio.create_task(store.wait_for_rollouts(rollout_ids=[rollout.rollout_id], timeout=20))
    await asyncio.sleep(0.5)
    own_server.start()
    await store.update_attempt(rollout.rollout_id, "latest", status="succeeded")
    assert [ended.status for ended in await waiting] == ["succeeded"]
    await store.close()


async def test_a_store_goes_on_after_its_server_was_restarted(own_server: PostgresServer) -> None:
    store, other = SqlLightningStore(own_server.url("postgres")), SqlLightningStore(own_server.url("postgres"))
    claimed = await store.start_rollout("a")
    waiting = asyncio.create_task(store.wait_for_rollouts(rollout_ids=[claimed.rollout_id], timeout=30))
    await _until_listening(own_server.url("postgres"))
    own_server.stop()
    for call in (store.enqueue_rollout("lost"), store.get_rollout_by_id(claimed.rollout_id)):
        with pytest.raises(LightningStoreError, match="does not answer"):
            await call
    own_server.start()
    assert await store.get_rollout_by_id(claimed.rollout_id) == claimed
    await store.enqueue_rollout("b")
    await other.update_attempt(claimed.rollout_id, "latest", status="succeeded")
    assert [rollout.status for rollout in await waiting] == ["succeeded"]
    assert [rollout.input for rollout in await store.query_rollouts()] == ["a", "b"]
    await other.close()
    await store.close()


async def test_no_log_of_the_server_shows_the_parameters_of_a_statement(own_server: PostgresServer) -> None:
    for setting in ("log_statement = 'all'", "log_parameter_max_length_on_error = -1", "log_parameter_max_length = 0"):
        own_server.execute(f"ALTER SYSTEM SET {setting}")
    own_server.execute("SELECT pg_reload_conf()")
    store = SqlLightningStore(own_server.url("postgres"))
    with pytest.raises(ValueError, match="cannot keep this"):  # the server's index takes no name so long
        await store.update_worker(f"the colour of the vault {random.Random(0).randbytes(20_000).hex()}")
    await store.enqueue_rollout({"task": "a secret task"})
    await store.close()
    log = (own_server.folder / "server.log").read_text()
    assert "INSERT INTO agl_rollouts" in log
    assert "ERROR:  index row" in log
    assert "a secret task" not in log
    assert "the colour of the vault" not in log
