"""The tables of the SQL store, and the check that a file has them in this version.

Texts named `*_json` hold JSON. `number` columns order rows as they were stored. `queue_position` is null outside of
the queue, `deadline` is null for an attempt that no limit can end.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Final

from sqlalchemy import (
    URL,
    Column,
    Connection,
    Engine,
    Float,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    create_engine,
    event,
    insert,
    inspect,
    select,
)
from sqlalchemy.pool import ConnectionPoolEntry

from .vocabulary import LightningStoreError

SCHEMA_VERSION: Final = 1

METADATA: Final = MetaData()

VERSION: Final = Table("agl_schema", METADATA, Column("version", Integer, primary_key=True))

ROLLOUTS: Final = Table(
    "agl_rollouts",
    METADATA,
    Column("number", Integer, primary_key=True),
    Column("rollout_id", String, nullable=False, unique=True),
    Column("status", String, nullable=False),
    Column("mode", String),
    Column("resources_id", String),
    Column("start_time", Float, nullable=False),
    Column("end_time", Float),
    Column("input_json", Text, nullable=False),
    Column("config_json", Text, nullable=False),
    Column("metadata_json", Text, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("queue_position", Integer),
)
Index("agl_rollouts_by_status", ROLLOUTS.c.status, ROLLOUTS.c.number)
Index("agl_rollouts_queue", ROLLOUTS.c.queue_position, sqlite_where=ROLLOUTS.c.queue_position.is_not(None))

ATTEMPTS: Final = Table(
    "agl_attempts",
    METADATA,
    Column("number", Integer, primary_key=True),
    Column("rollout_id", String, nullable=False),
    Column("attempt_id", String, nullable=False),
    Column("sequence_id", Integer, nullable=False),
    Column("status", String, nullable=False),
    Column("start_time", Float, nullable=False),
    Column("end_time", Float),
    Column("worker_id", String),
    Column("last_heartbeat_time", Float),
    Column("metadata_json", Text, nullable=False),
    Column("last_span_number", Integer, nullable=False),
    Column("deadline", Float),
    UniqueConstraint("rollout_id", "sequence_id"),
    UniqueConstraint("rollout_id", "attempt_id"),
)
Index("agl_attempts_deadline", ATTEMPTS.c.deadline, sqlite_where=ATTEMPTS.c.deadline.is_not(None))

SPANS: Final = Table(
    "agl_spans",
    METADATA,
    Column("number", Integer, primary_key=True),
    Column("rollout_id", String, nullable=False),
    Column("attempt_id", String, nullable=False),
    Column("sequence_id", Integer, nullable=False),
    Column("trace_id", String, nullable=False),
    Column("span_id", String, nullable=False),
    Column("parent_id", String),
    Column("name", String, nullable=False),
    Column("start_time", Float),
    Column("end_time", Float),
    Column("body_json", Text, nullable=False),
    UniqueConstraint("rollout_id", "attempt_id", "span_id"),
)
Index("agl_spans_in_order", SPANS.c.rollout_id, SPANS.c.attempt_id, SPANS.c.sequence_id)

RESOURCES: Final = Table(
    "agl_resources",
    METADATA,
    Column("number", Integer, primary_key=True),
    Column("resources_id", String, nullable=False, unique=True),
    Column("create_time", Float, nullable=False),
    Column("update_time", Float, nullable=False),
    Column("version", Integer, nullable=False),
    Column("resources_json", Text, nullable=False),
    Column("write_number", Integer, nullable=False, index=True),
)

WORKERS: Final = Table(
    "agl_workers",
    METADATA,
    Column("number", Integer, primary_key=True),
    Column("worker_id", String, nullable=False, unique=True),
    Column("status", String, nullable=False),
    Column("heartbeat_stats_json", Text, nullable=False),
    Column("last_heartbeat_time", Float),
    Column("last_dequeue_time", Float),
    Column("last_busy_time", Float),
    Column("last_idle_time", Float),
    Column("current_rollout_id", String),
    Column("current_attempt_id", String),
)


def open_sqlite(path: Path, busy_timeout_seconds: float, synchronous: str, *, readers: int) -> Engine:
    """An engine for one writing connection, with the execution option `agl_writes`, and a few reading ones.

    A writing transaction takes the write lock when it begins, so that nothing it has read can change under it.
    """
    engine = create_engine(
        URL.create("sqlite", database=str(path)),
        connect_args={"timeout": busy_timeout_seconds, "check_same_thread": False},
        pool_size=readers + 1,
        max_overflow=1,
    )

    def configure(connection: sqlite3.Connection, _: ConnectionPoolEntry) -> None:
        connection.isolation_level = None  # transactions begin where `begin` says, not where the driver guesses
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute(f"PRAGMA synchronous={synchronous}")

    def begin(connection: Connection) -> None:
        writes = connection.get_execution_options().get("agl_writes", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    event.listen(engine, "connect", configure)
    event.listen(engine, "begin", begin)
    return engine


def prepare(connection: Connection, path: Path) -> None:
    """Make the tables in an empty file, or check their version.

    Raises:
        LightningStoreError: the file holds something else, or a store of another version.
    """
    present = set(inspect(connection).get_table_names())
    if not present:
        METADATA.create_all(connection)
        connection.execute(insert(VERSION).values(version=SCHEMA_VERSION))
        return
    if VERSION.name not in present:
        raise LightningStoreError(f"{path} is a database, but not of a store: choose another store path")
    version = connection.scalar(select(VERSION.c.version))
    if version != SCHEMA_VERSION:
        raise LightningStoreError(
            f"the store {path} has schema version {version}, this program reads version {SCHEMA_VERSION}: "
            "use the program that wrote it, or choose another store path"
        )
