"""Opening a store that an older version of the program has written."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import create_engine, inspect
from sqlalchemy.engine import make_url

from mini_agentic_rl.store import SqlLightningStore
from mini_agentic_rl.store.sql.schema import SCHEMA_VERSION

from .postgres import needs_postgres, new_database

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


def _old_sqlite(folder: Path) -> tuple[str, str]:
    path = folder / "old.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(VERSION_1.format(number="INTEGER NOT NULL PRIMARY KEY"))
    return str(path), f"sqlite:///{path}"


def _old_postgres(folder: Path) -> tuple[str, str]:
    url = new_database()
    with psycopg.connect(url) as connection:
        connection.execute(VERSION_1.format(number="SERIAL PRIMARY KEY"))
        for table, rows in (("agl_rollouts", 2), ("agl_attempts", 1), ("agl_spans", 2)):
            connection.execute(f"SELECT setval(pg_get_serial_sequence('{table}', 'number'), {rows})")
    return url, make_url(url).set(drivername="postgresql+psycopg").render_as_string(hide_password=False)


@pytest.mark.parametrize("old", [_old_sqlite, pytest.param(_old_postgres, marks=needs_postgres)])
async def test_a_store_of_version_1_is_brought_up_to_date_and_used(old, tmp_path: Path) -> None:
    path_or_url, engine_url = old(tmp_path)
    engine = create_engine(engine_url)
    store = SqlLightningStore(path_or_url)
    indexes = {index["name"] for table in ("agl_rollouts", "agl_spans") for index in inspect(engine).get_indexes(table)}
    assert "agl_rollouts_by_start" in indexes
    assert "agl_spans_in_order" not in indexes
    with engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT version FROM agl_schema").fetchall() == [(SCHEMA_VERSION,)]
    engine.dispose()

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
    path, _ = _old_sqlite(tmp_path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("DROP INDEX agl_spans_in_order")
    with pytest.raises(Exception, match="agl_spans_in_order"):
        SqlLightningStore(path)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT version FROM agl_schema").fetchall() == [(1,)]
        names = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'index'")]
    assert "agl_rollouts_by_start" not in names
