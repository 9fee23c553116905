"""The tables of the SQL store in their newest version, and the migrations from older versions.

A new version adds a function at the end of `MIGRATIONS` and makes the same change in the tables. A migration spells its
SQL out instead of reading these tables, which later versions change.

Texts named `*_json` hold JSON. `number` columns order rows as they were stored. `queue_position` is null outside of
the queue, `deadline` is null for an attempt that no limit can end. `step` and `group_id` are `step` and `group` of the
rollout's metadata. `reward` of a span is the reward that it carries; of a rollout, that of the last reward span of its
latest attempt.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Callable
from typing import Any, Final

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
from ..listing import LLM_CALL_SPAN, step_and_group, stored_reward

ExactText: Final[TypeEngine[str]] = String().with_variant(String(collation="C"), "postgresql")
"""Text that is compared and ordered by code points, independent of the locale of the database."""
Count: Final[TypeEngine[int]] = Integer().with_variant(BigInteger(), "postgresql")
"""Integer of 64 bits. As a primary key it is assigned by the database, in ascending order."""

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
    Column("step", Count),
    Column("group_id", ExactText),
    Column("reward", Float),
    Column("input_json", Text, nullable=False),
    Column("config_json", Text, nullable=False),
    Column("metadata_json", Text, nullable=False),
    Column("attempts", Count, nullable=False),
    Column("queue_position", Count),
)
Index("agl_rollouts_by_status", ROLLOUTS.c.status, ROLLOUTS.c.number)
Index("agl_rollouts_by_start", ROLLOUTS.c.start_time, ROLLOUTS.c.number)
_LAST_ENDED: Final = "agl_rollouts_last_ended"
"""Index for the rollouts of a status that ended last; null comes last, which is SQLite's default."""
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
    Column("reward", Float),
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


def _index_where_set(name: str, *columns: ColumnElement[Any]) -> None:
    """Create an index of the rows with a value in the first column."""
    is_set = columns[0].is_not(None)
    Index(name, *columns, sqlite_where=is_set, postgresql_where=is_set)


_index_where_set("agl_rollouts_queue", ROLLOUTS.c.queue_position)
_index_where_set("agl_rollouts_by_step", ROLLOUTS.c.step, ROLLOUTS.c.number)
_index_where_set("agl_rollouts_by_group", ROLLOUTS.c.group_id, ROLLOUTS.c.number)
_index_where_set("agl_attempts_deadline", ATTEMPTS.c.deadline)


logger = logging.getLogger(__name__)


def _indexes_that_are_used(connection: Connection) -> None:
    """Add an index for lists sorted by start time, and drop one for spans, which are sorted when they are read."""
    connection.execute(text("CREATE INDEX agl_rollouts_by_start ON agl_rollouts (start_time, number)"))
    connection.execute(text("DROP INDEX agl_spans_in_order"))


def _index_of_those_that_ended_last(connection: Connection) -> None:
    """Add an index for the rollouts that ended last."""
    nulls = "" if connection.dialect.name == "sqlite" else " NULLS LAST"
    connection.execute(
        text(f"CREATE INDEX agl_rollouts_last_ended ON agl_rollouts (status, end_time DESC{nulls}, number)")
    )


def _outcomes_by_key(connection: Connection) -> None:
    """Add the table of the outcomes of writes, by idempotency key."""
    number = "INTEGER" if connection.dialect.name == "sqlite" else "BIGSERIAL"
    collation = "" if connection.dialect.name == "sqlite" else ' COLLATE "C"'
    connection.execute(
        text(
            f"CREATE TABLE agl_outcomes (number {number} NOT NULL PRIMARY KEY, "
            f"key VARCHAR{collation} NOT NULL UNIQUE, outcome_json TEXT NOT NULL)"
        )
    )


_MIGRATED_AT_ONCE: Final = 1000
"""Rows that a migration reads at once."""


def _columns_for_listings(connection: Connection) -> None:
    """Add step, group and reward, which listings filter by, and fill them from the metadata and the spans."""
    sqlite = connection.dialect.name == "sqlite"
    count, exact_text = ("INTEGER", "VARCHAR") if sqlite else ("BIGINT", 'VARCHAR COLLATE "C"')
    for table, column, kind in (
        ("agl_rollouts", "step", count),
        ("agl_rollouts", "group_id", exact_text),
        ("agl_rollouts", "reward", "FLOAT"),
        ("agl_spans", "reward", "FLOAT"),
    ):
        connection.execute(text(f"ALTER TABLE {table} ADD COLUMN {column} {kind}"))
    _fill(
        connection,
        "SELECT number, metadata_json FROM agl_rollouts WHERE metadata_json <> '{}'",
        "UPDATE agl_rollouts SET step = :step, group_id = :group_id WHERE number = :number",
        lambda row: dict(zip(("step", "group_id"), step_and_group(json.loads(row["metadata_json"])), strict=True)),
    )
    _fill(
        connection,
        f"SELECT number, name, body_json FROM agl_spans WHERE name <> '{LLM_CALL_SPAN}' AND body_json LIKE '%reward%'",
        "UPDATE agl_spans SET reward = :reward WHERE number = :number",
        lambda row: {"reward": stored_reward(row["name"], json.loads(row["body_json"])["attributes"])},
    )
    connection.execute(
        text(
            "UPDATE agl_rollouts SET reward = (SELECT s.reward FROM agl_spans s JOIN agl_attempts a ON "
            "a.rollout_id = s.rollout_id AND a.attempt_id = s.attempt_id WHERE s.rollout_id = agl_rollouts.rollout_id "
            "AND a.sequence_id = agl_rollouts.attempts AND s.reward IS NOT NULL "
            "ORDER BY s.sequence_id DESC, s.number DESC LIMIT 1) "
            "WHERE rollout_id IN (SELECT rollout_id FROM agl_spans WHERE reward IS NOT NULL)"
        )
    )
    for column in ("step", "group_id"):
        name = f"agl_rollouts_by_{column.removesuffix('_id')}"
        connection.execute(text(f"CREATE INDEX {name} ON agl_rollouts ({column}, number) WHERE {column} IS NOT NULL"))


def _fill(connection: Connection, query: str, change: str, values_of: Callable[[Any], dict[str, Any]]) -> None:
    """Update rows by values that are computed from what is stored; a damaged row is left as it is.

    Args:
        query: Selects `number` and the columns that `values_of` reads; ends in a condition.
        change: Updates one row.
        values_of: Returns the new values of a row.
    """
    last = -1
    page = text(f"{query} AND number > :last ORDER BY number LIMIT {_MIGRATED_AT_ONCE}")
    while rows := connection.execute(page, {"last": last}).mappings().all():
        last = rows[-1]["number"]
        changed = []
        for row in rows:
            with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError, RecursionError):
                values = values_of(row)
                if any(value is not None for value in values.values()):
                    changed.append({"number": row["number"], **values})
        if changed:
            connection.execute(text(change), changed)


MIGRATIONS: Final[tuple[Callable[[Connection], None], ...]] = (
    _indexes_that_are_used,
    _index_of_those_that_ended_last,
    _outcomes_by_key,
    _columns_for_listings,
)
"""Migrations; the one at index n - 1 leads from version n to version n + 1."""
SCHEMA_VERSION: Final = len(MIGRATIONS) + 1


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
    if VERSION.name not in present and not present & set(METADATA.tables) and not (alone and present):
        METADATA.create_all(connection)
        connection.execute(insert(VERSION).values(version=SCHEMA_VERSION))
        return
    version = version_of(connection, name)
    if version == SCHEMA_VERSION:
        return
    for migrate in MIGRATIONS[version - 1 :]:
        migrate(connection)
    connection.execute(update(VERSION).values(version=SCHEMA_VERSION))
    logger.info("the store %s was brought from schema version %d to %d", name, version, SCHEMA_VERSION)


def version_of(connection: Connection, name: str) -> int:
    """Return the schema version of a store.

    Raises:
        LightningStoreError: the database holds no store, or one of a newer version.
    """
    if VERSION.name not in inspect(connection).get_table_names():
        raise LightningStoreError(f"{name} is a database, but not of a store: choose another store path or URL")
    version = connection.scalar(select(VERSION.c.version))
    if version is None or not 1 <= version <= SCHEMA_VERSION:
        raise LightningStoreError(
            f"the store {name} has schema version {version}, this program reads versions up to {SCHEMA_VERSION}: "
            "use the program that wrote it, or choose another store path or URL"
        )
    return int(version)
