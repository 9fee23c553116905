"""The tables of the SQL store, as its newest version has them; `sql_migrations` brings older ones there.

Texts named `*_json` hold JSON. `number` columns order rows as they were stored. `queue_position` is null outside of
the queue, `deadline` is null for an attempt that no limit can end.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import Column, ColumnElement, Float, Index, Integer, MetaData, Table, Text, UniqueConstraint

from .dialect import Count, ExactText

METADATA: Final = MetaData()

VERSION: Final = Table("agl_schema", METADATA, Column("version", Integer, primary_key=True))

ROLLOUTS: Final = Table(
    "agl_rollouts",
    METADATA,
    Column("number", Count, primary_key=True),
    Column("rollout_id", ExactText, nullable=False, unique=True),
    Column("status", ExactText, nullable=False),
    Column("mode", ExactText),
    Column("resources_id", ExactText),
    Column("start_time", Float, nullable=False),
    Column("end_time", Float),
    Column("input_json", Text, nullable=False),
    Column("config_json", Text, nullable=False),
    Column("metadata_json", Text, nullable=False),
    Column("attempts", Count, nullable=False),
    Column("queue_position", Count),
)
Index("agl_rollouts_by_status", ROLLOUTS.c.status, ROLLOUTS.c.number)
Index("agl_rollouts_by_start", ROLLOUTS.c.start_time, ROLLOUTS.c.number)

ATTEMPTS: Final = Table(
    "agl_attempts",
    METADATA,
    Column("number", Count, primary_key=True),
    Column("rollout_id", ExactText, nullable=False),
    Column("attempt_id", ExactText, nullable=False),
    Column("sequence_id", Count, nullable=False),
    Column("status", ExactText, nullable=False),
    Column("start_time", Float, nullable=False),
    Column("end_time", Float),
    Column("worker_id", ExactText),
    Column("last_heartbeat_time", Float),
    Column("metadata_json", Text, nullable=False),
    Column("last_span_number", Count, nullable=False),
    Column("deadline", Float),
    UniqueConstraint("rollout_id", "sequence_id"),
    UniqueConstraint("rollout_id", "attempt_id"),
)

SPANS: Final = Table(
    "agl_spans",
    METADATA,
    Column("number", Count, primary_key=True),
    Column("rollout_id", ExactText, nullable=False),
    Column("attempt_id", ExactText, nullable=False),
    Column("sequence_id", Count, nullable=False),
    Column("trace_id", ExactText, nullable=False),
    Column("span_id", ExactText, nullable=False),
    Column("parent_id", ExactText),
    Column("name", ExactText, nullable=False),
    Column("start_time", Float),
    Column("end_time", Float),
    Column("body_json", Text, nullable=False),
    UniqueConstraint("rollout_id", "attempt_id", "span_id"),
)

RESOURCES: Final = Table(
    "agl_resources",
    METADATA,
    Column("number", Count, primary_key=True),
    Column("resources_id", ExactText, nullable=False, unique=True),
    Column("create_time", Float, nullable=False),
    Column("update_time", Float, nullable=False),
    Column("version", Count, nullable=False),
    Column("resources_json", Text, nullable=False),
    Column("write_number", Count, nullable=False, index=True),
)

WORKERS: Final = Table(
    "agl_workers",
    METADATA,
    Column("number", Count, primary_key=True),
    Column("worker_id", ExactText, nullable=False, unique=True),
    Column("status", ExactText, nullable=False),
    Column("heartbeat_stats_json", Text, nullable=False),
    Column("last_heartbeat_time", Float),
    Column("last_dequeue_time", Float),
    Column("last_busy_time", Float),
    Column("last_idle_time", Float),
    Column("current_rollout_id", ExactText),
    Column("current_attempt_id", ExactText),
)


def _index_where_set(name: str, column: ColumnElement[object]) -> None:
    """An index of the rows that have a value in the column; statements use it if they ask for just those rows."""
    is_set = column.is_not(None)
    Index(name, column, sqlite_where=is_set, postgresql_where=is_set)


_index_where_set("agl_rollouts_queue", ROLLOUTS.c.queue_position)
_index_where_set("agl_attempts_deadline", ATTEMPTS.c.deadline)
