"""What only the store in a file can do or suffer."""

from __future__ import annotations

import pickle
import sqlite3
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, create_engine, event
from sqlalchemy.pool import Pool

from mini_agentic_rl.store import LightningStoreError, SqlLightningStore
from mini_agentic_rl.store.listing import RolloutFilter
from mini_agentic_rl.store.sql import tables as sql_tables
from mini_agentic_rl.store.sql.schema import SCHEMA_VERSION
from mini_agentic_rl.store.sql.statements import Statement, listing_of, page_of, total_of
from mini_agentic_rl.store.tables import Query, conditions
from mini_agentic_rl.types import EnqueueRolloutRequest, RolloutConfig, Span

from .test_contract import check_reopened, span_of


async def test_a_reopened_store_holds_what_it_held(tmp_path: Path) -> None:
    store = SqlLightningStore(tmp_path / "runs" / "store.db")
    await check_reopened(store, lambda: SqlLightningStore(f"sqlite:///{store.path}"))


async def test_a_pickled_store_opens_the_same_file(tmp_path: Path) -> None:
    store = SqlLightningStore(tmp_path / "store.db", synchronous="full")
    queued = await store.enqueue_rollout("a")
    other = pickle.loads(pickle.dumps(store))
    claimed = await other.dequeue_rollout()
    assert claimed.rollout_id == queued.rollout_id
    await other.close()
    await store.close()


async def test_a_batch_with_a_task_that_is_not_json_changes_nothing(tmp_path: Path) -> None:
    store = SqlLightningStore(tmp_path / "store.db")
    requests = [EnqueueRolloutRequest(input=1), EnqueueRolloutRequest(input=object())]
    with pytest.raises(ValueError, match="as JSON"):
        await store.enqueue_many_rollouts(requests)
    assert await store.dequeue_rollout() is None
    await store.close()


async def test_a_file_of_a_newer_schema_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    await SqlLightningStore(path).close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE agl_schema SET version = 99")
        connection.commit()
    with pytest.raises(LightningStoreError, match=f"schema version 99.* up to {SCHEMA_VERSION}"):
        SqlLightningStore(path)


def test_a_database_of_another_program_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE customers (name TEXT)")
        connection.commit()
    with pytest.raises(LightningStoreError, match="not of a store"):
        SqlLightningStore(path)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("customers",)]


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("not a database, " * 100)
    with pytest.raises(LightningStoreError, match="not a SQLite file"):
        SqlLightningStore(path)
    assert path.read_text().startswith("not a database")


def test_a_path_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LightningStoreError, match="cannot make the folder"):
        SqlLightningStore(tmp_path / "file" / "store.db")
    with pytest.raises(LightningStoreError, match="cannot be opened"):
        SqlLightningStore(tmp_path)


@pytest.mark.parametrize("url", ["mysql://u:secret@host/db", ":memory:", "sqlite://", "://"])
def test_a_url_of_anything_else_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"needs a file|store URL"):
        SqlLightningStore(url)


async def test_a_locked_file_gives_an_error_that_names_the_setting_and_works_afterwards(tmp_path: Path) -> None:
    store = SqlLightningStore(tmp_path / "store.db", busy_timeout_seconds=0.2)
    with closing(sqlite3.connect(store.path, isolation_level=None)) as intruder:
        intruder.execute("BEGIN IMMEDIATE")
        with pytest.raises(LightningStoreError, match="busy_timeout_seconds"):
            await store.enqueue_rollout("a")
        assert await store.query_rollouts() is not None
        intruder.execute("ROLLBACK")
    await store.enqueue_rollout("b")
    assert [rollout.input for rollout in await store.query_rollouts()] == ["b"]
    await store.close()


@contextmanager
def small_disk() -> Iterator[None]:
    """No SQLite file that is opened inside may grow beyond 60 pages."""

    def limit(connection: sqlite3.Connection, _: Any) -> None:
        connection.execute("PRAGMA max_page_count=60")

    event.listen(Pool, "connect", limit)
    yield
    event.remove(Pool, "connect", limit)


async def test_a_full_disk_gives_an_error_and_damages_nothing(tmp_path: Path) -> None:
    stored: list[str] = []

    async def fill(store: SqlLightningStore) -> None:
        for _ in range(1000):
            stored.append((await store.enqueue_rollout("x" * 5000)).rollout_id)

    with small_disk():
        full = SqlLightningStore(tmp_path / "store.db")
        with pytest.raises(LightningStoreError, match="no space is left"):
            await fill(full)
        assert [rollout.rollout_id for rollout in await full.query_rollouts()] == stored
        await full.close()
    roomy = SqlLightningStore(tmp_path / "store.db")
    assert [rollout.rollout_id for rollout in await roomy.dequeue_many_rollouts(limit=1000)] == stored != []
    await roomy.close()


def _plan(connection: Connection, text: str, parameters: Any) -> list[str]:
    return [row[3] for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {text}", parameters)]


async def test_the_statements_of_a_call_find_their_rows_by_an_index(tmp_path: Path) -> None:
    await SqlLightningStore(tmp_path / "store.db").close()
    engine = create_engine(f"sqlite:///{tmp_path / 'store.db'}", paramstyle="named")
    fixed = {name: value for name, value in vars(sql_tables).items() if isinstance(value, Statement)}
    # two count all rows, the other reads the end of an index
    del fixed["_COUNTS"], fixed["_COUNTS_BY_STATUS"], fixed["_LATEST_RESOURCES"]
    assert len(fixed) > 15
    by_status = Query("rollout", (), conditions({"status_in": ["running"]}), limit=5)
    by_id = Query("rollout", (), conditions({"rollout_id_in": ["a", "b"]}))
    of_rollout = Query("span", conditions({"rollout_id": "a", "attempt_id": "b"}), conditions({"name": "c"}))
    with engine.connect() as connection:
        plans = {}
        for name, statement in fixed.items():
            text, constants = statement.text(engine.dialect)
            plans[name] = _plan(connection, text, defaultdict(lambda: 1, constants))
        for query in (by_status, by_id, of_rollout):
            for made in (page_of(query), total_of(query)):
                compiled = made.compile(engine)
                plans[str(compiled)] = _plan(connection, str(compiled), compiled.params)
        for wanted in (RolloutFilter(group="a"), RolloutFilter(step=1), RolloutFilter(text="a")):
            compiled = listing_of(wanted, 5, 5).compile(engine)
            plans[str(compiled)] = _plan(connection, str(compiled), compiled.params)
    assert [name for name, plan in plans.items() if any(step.startswith("SCAN agl_") for step in plan)] == []
    engine.dispose()


async def test_text_and_numbers_that_the_file_cannot_hold_are_refused_and_change_nothing(tmp_path: Path) -> None:
    store = SqlLightningStore(tmp_path / "store.db")
    claimed = await store.start_rollout("a")
    for field in ({"name": "broken \ud83d"}, {"sequence_id": 2**70}):
        with pytest.raises(ValueError, match=r"surrogates|64 bits"):
            await store.add_span(span_of(claimed, **field))
    assert list(await store.query_spans(claimed.rollout_id)) == []
    await store.close()


_DAMAGES = [
    ("agl_rollouts", "input_json", "{", "rollout_id"),
    ("agl_rollouts", "config_json", '{"max_attempts":"many"}', "rollout_id"),
    ("agl_attempts", "metadata_json", "{]", "rollout_id"),
    ("agl_spans", "body_json", "[1]", "span_id"),
    ("agl_resources", "resources_json", '{"a":{"resource_type":"none"}}', "resources_id"),
    ("agl_workers", "heartbeat_stats_json", "{", "worker_id"),
]


@pytest.mark.parametrize(("table", "column", "text", "named"), _DAMAGES)
async def test_a_damaged_row_is_named_and_left_out_of_every_listing(tmp_path, caplog, table, column, text, named):
    store = SqlLightningStore(tmp_path / "store.db")
    group = {"group": "a"}
    claimed = [await store.start_rollout(number, worker_id=f"w{number}", metadata=group) for number in range(3)]
    await store.add_many_spans(
        [
            Span(
                rollout_id=one.rollout_id,
                attempt_id=one.attempt.attempt_id,
                sequence_id=1,
                trace_id="0",
                span_id=f"s{one.input}",
                name="agentlightning.reward",
                attributes={"reward": 1.0},
            )
            for one in claimed
        ]
    )
    for _ in range(3):
        await store.add_resources({})
    ids = [one.rollout_id for one in claimed]
    for rollout_id in ids:
        await store.update_attempt(rollout_id, "latest", status="succeeded")
    with closing(sqlite3.connect(tmp_path / "store.db")) as connection:
        (name,) = connection.execute(f"SELECT {named} FROM {table} WHERE number = 2").fetchone()
        connection.execute(f"UPDATE {table} SET {column} = ? WHERE number = 2", (text,))
        connection.commit()
    left = 2 if table in ("agl_rollouts", "agl_attempts") else 3
    assert len(await store.query_rollouts()) == left
    assert len(await store.query_rollouts(limit=3, sort_by="start_time")) == left
    assert len((await store.list_rollouts()).items) == left
    assert len(await store.wait_for_rollouts(rollout_ids=ids, timeout=0)) == left
    assert len(await store.query_workers()) == (2 if table == "agl_workers" else 3)
    assert len(await store.query_resources()) == (2 if table == "agl_resources" else 3)
    attempts, spans = await store.query_attempts(ids[1]), await store.query_spans(ids[1])
    assert (len(attempts), len(spans)) == (table != "agl_attempts", table != "agl_spans")
    assert (await store.list_groups()).items[0].rewards == [1.0, 1.0, 1.0]
    await store.close()
    assert "is damaged in the database" in caplog.text
    assert name in caplog.text


async def test_a_damaged_rollout_leaves_the_queue_and_stops_no_other(tmp_path, caplog):
    store = SqlLightningStore(tmp_path / "store.db", scan_debounce_seconds=0.0)
    queued = await store.enqueue_many_rollouts([EnqueueRolloutRequest(input=number) for number in range(3)])
    limits = RolloutConfig(unresponsive_seconds=0.001)
    running = await store.start_rollout("running", config=limits)
    with closing(sqlite3.connect(tmp_path / "store.db")) as connection:
        damaged = [queued[0].rollout_id, running.rollout_id]
        for rollout_id in damaged:
            connection.execute("UPDATE agl_rollouts SET input_json = '{' WHERE rollout_id = ?", (rollout_id,))
        connection.commit()
    assert [one.input for one in await store.dequeue_many_rollouts(limit=1)] == [1]
    assert [one.input for one in await store.dequeue_many_rollouts(limit=9)] == [2]
    for rollout_id in damaged:
        assert rollout_id in caplog.text
        with pytest.raises(LightningStoreError, match=f"rollout {rollout_id} is damaged in the database"):
            await store.get_rollout_by_id(rollout_id)
    assert await store.delete_rollouts(damaged) == damaged
    await store.close()
