"""What only the store in an SQL database can do or suffer, and stores of older versions."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections import defaultdict
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import psycopg
import pytest

from mini_agentic_rl.store import LightningStoreError, SqlLightningStore
from mini_agentic_rl.store.listing import RolloutFilter
from mini_agentic_rl.store.sql import tables as sql_tables
from mini_agentic_rl.store.sql.backends import PostgresDatabase, SqliteDatabase
from mini_agentic_rl.store.sql.schema import SCHEMA_VERSION
from mini_agentic_rl.store.sql.statements import listing_of, page_of, total_of
from mini_agentic_rl.store.tables import Query, columns_of, conditions
from mini_agentic_rl.types import LLM, EnqueueRolloutRequest, ResourcesUpdate, RolloutConfig, Span

from .conftest import make_store
from .postgres import needs_postgres, new_database
from .test_contract import check_reopened, span_of


async def test_a_reopened_store_holds_what_it_held(tmp_path: Path) -> None:
    store = SqlLightningStore(tmp_path / "runs" / "store.db")
    await check_reopened(store, lambda: SqlLightningStore(f"sqlite+aiosqlite:///{store.path}?timeout=5"))


def test_a_resource_of_the_users_own_kind_is_stored_as_the_kind_that_is_declared() -> None:
    class OwnLLM(LLM):
        notes: str = "of its maker"

    update = ResourcesUpdate(
        resources_id="rs-1", create_time=1.0, update_time=1.0, version=1, resources={"llm": OwnLLM(model="m")}
    )
    assert "notes" not in columns_of("resources", update)["resources_json"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("CREATE TABLE customers (name TEXT)", "not of a store"),
        ("CREATE TABLE agl_schema (version INTEGER); INSERT INTO agl_schema VALUES (99)", "schema version 99.* up to"),
        (None, "not a SQLite file"),
    ],
)
def test_a_file_of_anything_else_is_refused_and_left_alone(tmp_path: Path, content: str | None, reason: str) -> None:
    path = tmp_path / "other.db"
    if content is None:
        path.write_text("not a database, " * 100)
    else:
        with closing(sqlite3.connect(path)) as connection:
            connection.executescript(content)
    path.chmod(0o644)
    before = path.stat()
    with pytest.raises(LightningStoreError, match=reason):
        SqlLightningStore(path)
    assert (path.stat().st_size, path.stat().st_mode) == (before.st_size, before.st_mode)


def test_a_path_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LightningStoreError, match="cannot make the folder"):
        SqlLightningStore(tmp_path / "file" / "store.db")
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(LightningStoreError, match="is not a file"):
            SqlLightningStore(path)


@pytest.mark.parametrize("url", ["mysql://u:secret@host/db", ":memory:", "sqlite://", "sqlite://x.db", "://"])
def test_a_url_of_anything_else_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"needs a file|store URL"):
        SqlLightningStore(url)


@pytest.mark.parametrize("written", ["p/w", "1/2", "p@w", "p@/w", "p w", "p:w", "p%2Fw%40", "p?w"])
def test_the_password_of_a_url_may_have_special_characters(written: str) -> None:
    options = PostgresDatabase(f"postgresql://u:{written}@host:5433/db?sslmode=require", 1.0)._options
    named = {"user": "u", "password": unquote(written), "host": "host", "port": "5433", "dbname": "db"}
    assert options.items() >= (named | {"sslmode": "require"}).items()


@pytest.mark.parametrize(
    "rest", ["u:secret@host:port/db", "u:secret@host/db?nothing=1", "u:secret?/x@host/db", "u:secret%w@host/db"]
)
def test_a_malformed_url_is_refused_without_its_password(rest: str) -> None:
    with pytest.raises(ValueError, match="not a URL") as raised:
        SqlLightningStore(f"postgresql+psycopg://{rest}")
    assert "secret" not in str(raised.value)
    assert raised.value.__context__ is None


async def test_a_deletion_that_waits_for_readers_of_the_log_says_that_the_store_was_closed(tmp_path: Path) -> None:
    store = SqlLightningStore(tmp_path / "store.db")
    rollout = await store.enqueue_rollout("a")
    with closing(sqlite3.connect(tmp_path / "store.db", isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM agl_rollouts").fetchone()
        deletion = asyncio.create_task(store.delete_rollouts([rollout.rollout_id]))
        await asyncio.sleep(0.3)
        await store.close()
        with pytest.raises(LightningStoreError, match="is closed"):
            await deletion


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


async def test_a_full_disk_gives_an_error_and_damages_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    connect = SqliteDatabase._connect

    def to_small_disk(database: SqliteDatabase) -> sqlite3.Connection:
        connection = connect(database)
        connection.execute("PRAGMA max_page_count=60")
        return connection

    stored: list[str] = []

    async def fill(store: SqlLightningStore) -> None:
        for _ in range(1000):
            stored.append((await store.enqueue_rollout("x" * 5000)).rollout_id)

    with monkeypatch.context() as patched:
        patched.setattr(SqliteDatabase, "_connect", to_small_disk)
        full = SqlLightningStore(tmp_path / "store.db")
        with pytest.raises(LightningStoreError, match="no space is left"):
            await fill(full)
        assert [rollout.rollout_id for rollout in await full.query_rollouts()] == stored
        await full.close()
    roomy = SqlLightningStore(tmp_path / "store.db")
    assert [rollout.rollout_id for rollout in await roomy.dequeue_many_rollouts(limit=1000)] == stored != []
    await roomy.close()


async def test_the_statements_of_a_call_find_their_rows_by_an_index(tmp_path: Path) -> None:
    await SqlLightningStore(tmp_path / "store.db").close()
    fixed = {name: value for name, value in vars(sql_tables).items() if name.isupper() and isinstance(value, str)}
    # no statements; two count all rows, the other reads the end of an index
    for name in ("_ROLLOUT", "_ATTEMPT", "ROLLOUTS_WITH_LATEST", "_COUNTS", "_COUNTS_BY_STATUS", "_LATEST_RESOURCES"):
        del fixed[name]
    assert len(fixed) > 15
    by_status = Query("rollout", (), conditions({"status_in": ["running"]}), limit=5)
    by_id = Query("rollout", (), conditions({"rollout_id_in": ["a", "b"]}))
    of_rollout = Query("span", conditions({"rollout_id": "a", "attempt_id": "b"}), conditions({"name": "c"}))
    statements = [(sql, defaultdict(lambda: 1)) for sql in fixed.values()]
    statements += [made(query) for query in (by_status, by_id, of_rollout) for made in (page_of, total_of)]
    wanted = (RolloutFilter(group="a"), RolloutFilter(step=1), RolloutFilter(text="a"))
    statements += [listing_of(each, 5, 5) for each in wanted]
    with closing(sqlite3.connect(tmp_path / "store.db")) as connection:
        for sql, values in statements:
            plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}", values)]
            assert not [step for step in plan if step.startswith("SCAN agl_")], sql


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgres", marks=needs_postgres)])
async def test_a_claim_is_bounded_by_the_size_of_the_tasks(kind: str, tmp_path: Path) -> None:
    """A store's server holds a claim in memory."""
    store = make_store(kind, tmp_path)
    tasks = [size * "a" for size in (9_000_000, 20_000_000, 9_000_000, 1, 2, 3)]
    queued = await store.enqueue_many_rollouts([EnqueueRolloutRequest(input=task) for task in tasks])
    claims = [await store.dequeue_many_rollouts(limit=6) for _ in range(4)]
    assert [len(claim) for claim in claims] == [1, 1, 4, 0]
    assert [rollout.rollout_id for claim in claims for rollout in claim] == [rollout.rollout_id for rollout in queued]
    await store.close()


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgres", marks=needs_postgres)])
async def test_what_a_database_cannot_hold_is_refused_and_changes_nothing(kind: str, tmp_path: Path) -> None:
    store = make_store(kind, tmp_path)
    claimed = await store.start_rollout("a")
    nul = [{"name": "nul \x00"}] if kind == "postgres" else []
    for field in ({"span_id": "broken \ud83d"}, {"sequence_id": 2**70}, *nul):
        with pytest.raises(ValueError, match=r"NUL|surrogates|64 bits|range"):
            await store.add_span(span_of(claimed, **field))
    stored = span_of(claimed, attributes={"text": "nul \x00 and \ud83d", "number": 2**70})
    assert await store.add_span(stored) == stored
    assert list(await store.query_spans(claimed.rollout_id)) == [stored]
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


VERSION_1 = """
CREATE TABLE agl_schema (version INTEGER NOT NULL, PRIMARY KEY (version));
INSERT INTO agl_schema VALUES (1);
CREATE TABLE agl_rollouts (
    number {number}, rollout_id VARCHAR NOT NULL, status VARCHAR NOT NULL, mode VARCHAR, resources_id VARCHAR,
    start_time FLOAT NOT NULL, end_time FLOAT, input_json TEXT NOT NULL, config_json TEXT NOT NULL,
    metadata_json TEXT NOT NULL, attempts INTEGER NOT NULL, queue_position INTEGER, UNIQUE (rollout_id)
);
CREATE INDEX agl_rollouts_by_status ON agl_rollouts (status, number);
CREATE INDEX agl_rollouts_queue ON agl_rollouts (queue_position) WHERE queue_position IS NOT NULL;
CREATE TABLE agl_attempts (
    number {number}, rollout_id VARCHAR NOT NULL, attempt_id VARCHAR NOT NULL, sequence_id INTEGER NOT NULL,
    status VARCHAR NOT NULL, start_time FLOAT NOT NULL, end_time FLOAT, worker_id VARCHAR, last_heartbeat_time FLOAT,
    metadata_json TEXT NOT NULL, last_span_number INTEGER NOT NULL, deadline FLOAT,
    UNIQUE (rollout_id, sequence_id), UNIQUE (rollout_id, attempt_id)
);
CREATE INDEX agl_attempts_deadline ON agl_attempts (deadline) WHERE deadline IS NOT NULL;
CREATE TABLE agl_spans (
    number {number}, rollout_id VARCHAR NOT NULL, attempt_id VARCHAR NOT NULL, sequence_id INTEGER NOT NULL,
    trace_id VARCHAR NOT NULL, span_id VARCHAR NOT NULL, parent_id VARCHAR, name VARCHAR NOT NULL, start_time FLOAT,
    end_time FLOAT, body_json TEXT NOT NULL, UNIQUE (rollout_id, attempt_id, span_id)
);
CREATE INDEX agl_spans_in_order ON agl_spans (rollout_id, attempt_id, sequence_id);
CREATE TABLE agl_resources (
    number {number}, resources_id VARCHAR NOT NULL, create_time FLOAT NOT NULL, update_time FLOAT NOT NULL,
    version INTEGER NOT NULL, resources_json TEXT NOT NULL, write_number INTEGER NOT NULL, UNIQUE (resources_id)
);
CREATE INDEX ix_agl_resources_write_number ON agl_resources (write_number);
CREATE TABLE agl_workers (
    number {number}, worker_id VARCHAR NOT NULL, status VARCHAR NOT NULL, heartbeat_stats_json TEXT NOT NULL,
    last_heartbeat_time FLOAT, last_dequeue_time FLOAT, last_busy_time FLOAT, last_idle_time FLOAT,
    current_rollout_id VARCHAR, current_attempt_id VARCHAR, UNIQUE (worker_id)
);
INSERT INTO agl_rollouts VALUES
    (1, 'ro-1', 'running', 'train', NULL, 10.5, NULL, '{{"n":1}}',
     '{{"timeout_seconds":null,"unresponsive_seconds":null,"max_attempts":2,"retry_condition":["failed"]}}',
     '{{"k":1,"step":3,"group":"3/1"}}', 1, NULL),
    (2, 'ro-2', 'queuing', NULL, NULL, 11.5, NULL, '{{"n":2}}',
     '{{"timeout_seconds":null,"unresponsive_seconds":null,"max_attempts":1,"retry_condition":[]}}', '{{}}', 0, 1);
INSERT INTO agl_attempts VALUES (1, 'ro-1', 'at-1', 1, 'running', 10.75, NULL, 'w', 10.9, '{{}}', 2, NULL);
INSERT INTO agl_spans VALUES
    (1, 'ro-1', 'at-1', 2, 'ab', 'later', NULL, 'call', 1.5, 2.5,
     '{{"status":{{"status_code":"OK"}},"attributes":{{"a":[1,2.5]}}}}'),
    (2, 'ro-1', 'at-1', 1, 'ab', 'sooner', NULL, 'call', 1.5, 2.5,
     '{{"attributes":{{"agentlightning.reward.0.value":0.25}}}}');
"""
"""The tables of version 1 and a little in them; `{number}` is how the database gives out numbers."""


def _old_sqlite(folder: Path) -> tuple[str, Any]:
    path = folder / "old.db"
    connection = sqlite3.connect(path)
    connection.executescript(VERSION_1.format(number="INTEGER NOT NULL PRIMARY KEY"))
    return str(path), connection


def _old_postgres(folder: Path) -> tuple[str, Any]:
    url = new_database()
    connection = psycopg.connect(url, autocommit=True)
    connection.execute(VERSION_1.format(number="SERIAL PRIMARY KEY"))
    for table, rows in (("agl_rollouts", 2), ("agl_attempts", 1), ("agl_spans", 2)):
        connection.execute(f"SELECT setval(pg_get_serial_sequence('{table}', 'number'), {rows})")
    return url, connection


@pytest.mark.parametrize(
    ("old", "indexes"),
    [
        (_old_sqlite, "SELECT name FROM sqlite_master WHERE type = 'index'"),
        pytest.param(_old_postgres, "SELECT indexname FROM pg_indexes", marks=needs_postgres),
    ],
)
async def test_a_store_of_version_1_is_brought_up_to_date_and_used(old: Any, indexes: str, tmp_path: Path) -> None:
    path_or_url, connection = old(tmp_path)
    store = SqlLightningStore(path_or_url)
    with closing(connection):
        names = {name for (name,) in connection.execute(indexes).fetchall()}
        assert connection.execute("SELECT version FROM agl_schema").fetchall() == [(SCHEMA_VERSION,)]
    assert "agl_rollouts_by_start" in names
    assert "agl_spans_in_order" not in names
    assert [rollout.input for rollout in await store.query_rollouts(sort_by="start_time")] == [{"n": 1}, {"n": 2}]
    assert [span.span_id for span in await store.query_spans("ro-1", "latest")] == ["sooner", "later"]
    page = await store.list_rollouts()
    assert ([rollout.rollout_id for rollout in page.items], page.rewards) == (["ro-2", "ro-1"], [None, 0.25])
    assert [rollout.rollout_id for rollout in (await store.list_rollouts(step=3, reward_min=0.2)).items] == ["ro-1"]
    ((group, rewards),) = [(one.group, one.rewards) for one in (await store.list_groups()).items]
    assert (group, rewards) == ("3/1", [0.25])
    assert await store.get_next_span_sequence_id("ro-1", "at-1") == 3
    await store.update_attempt("ro-1", "latest", status="failed")
    claimed = await store.dequeue_many_rollouts(limit=2)
    assert [(rollout.rollout_id, rollout.attempt.sequence_id) for rollout in claimed] == [("ro-2", 1), ("ro-1", 2)]
    new = await store.enqueue_rollout("new")
    await store.close()
    again = SqlLightningStore(path_or_url)
    assert await again.get_rollout_by_id(new.rollout_id) == new
    await again.close()


async def test_a_migration_that_fails_leaves_the_store_as_it_was(tmp_path: Path) -> None:
    path, connection = _old_sqlite(tmp_path)
    with closing(connection):
        connection.execute("DROP INDEX agl_spans_in_order")
    with pytest.raises(Exception, match="agl_spans_in_order"):
        SqlLightningStore(path)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT version FROM agl_schema").fetchall() == [(1,)]
        names = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'index'")]
    assert "agl_rollouts_by_start" not in names
