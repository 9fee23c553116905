"""The tables of the SQL store in their newest version, and the migrations that bring older ones there.

A new version is one more function at the end of `MIGRATIONS`, and the same change in the tables. A migration writes out
what it does instead of reading the tables here, which go on changing after it.

Texts named `*_json` hold JSON. `number` columns order rows as they were stored. `queue_position` is null outside of
the queue, `deadline` is null for an attempt that no limit can end.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Connection,
    Float,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    insert,
    inspect,
    select,
    text,
    update,
)
from sqlalchemy.schema import SchemaItem
from sqlalchemy.types import TypeEngine

from ..base import LightningStoreError

ExactText: Final[TypeEngine[str]] = String().with_variant(String(collation="C"), "postgresql")
"""Text that is compared and ordered by code points, whatever the locale of the database."""
Count: Final[TypeEngine[int]] = Integer().with_variant(BigInteger(), "postgresql")
"""Integer of 64 bits. As a primary key it is given out by the database, ever larger."""

METADATA: Final = MetaData()

VERSION: Final = Table("agl_schema", METADATA, Column("version", Integer, primary_key=True))


def _table(name: str, *parts: SchemaItem) -> Table:
    return Table(name, METADATA, Column("number", Count, primary_key=True), *parts)


ROLLOUTS: Final = _table(
    "agl_rollouts",
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
_LAST_ENDED: Final = "agl_rollouts_last_ended"
"""The order of a query for the rollouts of a status that ended last: null is last in it, which SQLite takes for granted
and has no words for."""
Index(_LAST_ENDED, ROLLOUTS.c.status, ROLLOUTS.c.end_time.desc(), ROLLOUTS.c.number).ddl_if(dialect="sqlite")
Index(_LAST_ENDED, ROLLOUTS.c.status, ROLLOUTS.c.end_time.desc().nulls_last(), ROLLOUTS.c.number).ddl_if(
    dialect="postgresql"
)

ATTEMPTS: Final = _table(
    "agl_attempts",
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

SPANS: Final = _table(
    "agl_spans",
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

RESOURCES: Final = _table(
    "agl_resources",
    Column("resources_id", ExactText, nullable=False, unique=True),
    Column("create_time", Float, nullable=False),
    Column("update_time", Float, nullable=False),
    Column("version", Count, nullable=False),
    Column("resources_json", Text, nullable=False),
    Column("write_number", Count, nullable=False, index=True),
)

WORKERS: Final = _table(
    "agl_workers",
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


OUTCOMES: Final = _table(
    "agl_outcomes",
    Column("key", ExactText, nullable=False, unique=True),
    Column("outcome_json", Text, nullable=False),
)


def _index_where_set(name: str, column: ColumnElement[object]) -> None:
    """Create an index of the rows that have a value in the column, for statements that ask for just those rows."""
    is_set = column.is_not(None)
    Index(name, column, sqlite_where=is_set, postgresql_where=is_set)


_index_where_set("agl_rollouts_queue", ROLLOUTS.c.queue_position)
_index_where_set("agl_attempts_deadline", ATTEMPTS.c.deadline)


logger = logging.getLogger(__name__)


def _indexes_that_are_used(connection: Connection) -> None:
    """Let a list sorted by start time read only the page that is asked for, and a new span enter one index less.

    The index that is gone ordered the spans of an attempt, which are few enough to be sorted when they are read.
    """
    connection.execute(text("CREATE INDEX agl_rollouts_by_start ON agl_rollouts (start_time, number)"))
    connection.execute(text("DROP INDEX agl_spans_in_order"))


def _index_of_those_that_ended_last(connection: Connection) -> None:
    """Let a page of the rollouts that ended last be read without all others."""
    nulls = "" if connection.dialect.name == "sqlite" else " NULLS LAST"
    connection.execute(
        text(f"CREATE INDEX agl_rollouts_last_ended ON agl_rollouts (status, end_time DESC{nulls}, number)")
    )


def _outcomes_by_key(connection: Connection) -> None:
    """Keep what a write made under its idempotency key."""
    number = "INTEGER" if connection.dialect.name == "sqlite" else "BIGSERIAL"
    collation = "" if connection.dialect.name == "sqlite" else ' COLLATE "C"'
    connection.execute(
        text(
            f"CREATE TABLE agl_outcomes (number {number} NOT NULL PRIMARY KEY, "
            f"key VARCHAR{collation} NOT NULL UNIQUE, outcome_json TEXT NOT NULL)"
        )
    )


MIGRATIONS: Final[tuple[Callable[[Connection], None], ...]] = (
    _indexes_that_are_used,
    _index_of_those_that_ended_last,
    _outcomes_by_key,
)
"""Migrations; the one at index n - 1 leads from version n to version n + 1."""
SCHEMA_VERSION: Final = len(MIGRATIONS) + 1
SAME_TABLES_SINCE: Final = 1
"""The oldest version that has the tables and columns of today; those after it differ in indexes and in the table of
outcomes, which a reader that changes nothing can do without."""


def prepare(connection: Connection, name: str, *, alone: bool) -> None:
    """Create the tables, or bring them to this version, in the running transaction, which excludes other writers.

    Args:
        connection: In a transaction.
        name: Name of the store in messages.
        alone: Refuse a database that holds other tables than a store's.

    Raises:
        LightningStoreError: the database holds something else, or a store of a newer version.
    """
    present = set(inspect(connection).get_table_names())
    if VERSION.name not in present:
        if present & set(METADATA.tables) or (alone and present):
            raise LightningStoreError(f"{name} is a database, but not of a store: choose another store path or URL")
        METADATA.create_all(connection)
        connection.execute(insert(VERSION).values(version=SCHEMA_VERSION))
        return
    version = connection.scalar(select(VERSION.c.version))
    if version is None or not 1 <= version <= SCHEMA_VERSION:
        raise LightningStoreError(
            f"the store {name} has schema version {version}, this program reads versions up to {SCHEMA_VERSION}: "
            "use the program that wrote it, or choose another store path or URL"
        )
    if version == SCHEMA_VERSION:
        return
    for migrate in MIGRATIONS[version - 1 :]:
        migrate(connection)
    connection.execute(update(VERSION).values(version=SCHEMA_VERSION))
    logger.info("the store %s was brought from schema version %d to %d", name, version, SCHEMA_VERSION)
